"""A config in memory: a mapping, a namespace, a dataclass, or the config object of a framework.

It is read and changed as a file of its ecosystem would be; what no ecosystem recognises is searched for the usual
names of the knobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.configs.documents import Document, SourceFile
from memplan.configs.ecosystems.plain import Plain
from memplan.configs.ecosystems.registry import ECOSYSTEMS, ecosystem_named
from memplan.configs.ecosystems.usual_names import USUAL_NAMES, with_one_accumulation
from memplan.configs.keys import is_called, keys_called
from memplan.configs.knob_changes import without_key
from memplan.configs.knobs import RECIPE_KNOBS, knobs_at
from memplan.configs.languages.registry import JSON, PYTHON, YAML
from memplan.configs.object_access import plain_values, with_member
from memplan.configs.options import knob_names
from memplan.configs.reading import followed_keys, recipe_within, require_present, with_declared
from memplan.configs.replicas import for_replicas
from memplan.configs.user_config import KnobName, UserConfig
from memplan.errors import UsageError

if TYPE_CHECKING:
    from memplan.configs.assignments import Assignment
    from memplan.configs.ecosystems.ecosystem import Ecosystem
    from memplan.configs.user_config import KnobKeys, RecipeChange
    from memplan.recipe import Recipe

# Names too general to be recognised in a file, but not in an object that is passed in to be planned.
_FURTHER_NAMES = {
    KnobName.MICRO_BATCH_SIZE: ("samples_per_gpu", "bs"),
    KnobName.LEARNING_RATE: ("base_lr",),
}
_NAMES = {name: (*usual, *_FURTHER_NAMES.get(name, ())) for name, usual in USUAL_NAMES.items()}


def config_of_object(
    config: object, *, assumed: Recipe, knob_keys: Mapping[str, str] | None = None, format_name: str | None = None
) -> UserConfig:
    """Read the knobs of a config object as those of a file.

    Args:
        config: the object; nothing of it changes.
        assumed: the recipe that holds for every knob the object does not have.
        knob_keys: knob name -> dotted key, on top of what is recognised.
        format_name: ecosystem to read it as; None recognises it by its content.

    Raises:
        ConfigError: a key is not in the object, or a value is out of range.
        UsageError: no micro-batch size is found in it, or several.
    """
    where = type(config).__name__
    document = _document(where, plain_values(config))
    declared = knob_names(knob_keys or {}, where="knobs")
    require_present(document, declared)
    ecosystem, document = _recognised(document, format_name)
    own = (
        _usual_keys(document.values, declared, where) if isinstance(ecosystem, Plain) else ecosystem.own_keys(document)
    )
    keys = followed_keys(document, with_declared(own, declared))
    read = UserConfig(
        document=document,
        format_name=ecosystem.name,
        recipe=_completed(ecosystem, document, keys, assumed),
        knobs=knobs_at(document, keys),
    )
    return for_replicas(read, assumed.world_size)


def changed_object(config: Any, change: RecipeChange, read: UserConfig) -> Any:
    """Set the values of a change on a config object and return it; a frozen dataclass is returned as a changed copy.

    Raises:
        UsageError: the object has no place for a knob that changes, and nothing of it has; or it refuses a value.
    """
    ecosystem = ecosystem_named(read.format_name)
    reason = _missing(read, change.recipe) if isinstance(ecosystem, Plain) else ecosystem.obstacle(read, change.recipe)
    if reason is not None:
        raise UsageError(reason, where=type(config).__name__)
    for each in ecosystem.assignments(read, change):
        config = _changed(config, each)
    return config


def _changed(config: Any, assignment: Assignment) -> Any:
    try:
        return with_member(config, assignment.key, assignment.value)
    except Exception as error:  # whatever the object's own class raises
        said, _, _ = str(error).partition("\n")
        raise UsageError(
            f"{assignment.key} cannot be set to {assignment.value!r}: {type(error).__name__}: {said}",
            where=type(config).__name__,
            hint="open it for changes, or set what plan.overrides() returns where it is made",
        ) from error


def _missing(read: UserConfig, recipe: Recipe) -> str | None:
    for name, (before, after) in without_key(read, recipe, RECIPE_KNOBS).items():
        return f'it has no {name}, so {before} cannot become {after}; name its place with knobs={{"{name}": "..."}}'
    return ecosystem_named(read.format_name).obstacle(read, replace(recipe, world_size=read.recipe.world_size))


def _document(where: str, values: object) -> Document:
    if not isinstance(values, dict):
        raise UsageError(f"a {where} holds no knobs", hint="give a mapping, a namespace or a dataclass")
    source = SourceFile(path=Path(f"<{where}>"), text="", sha256="")
    return Document(source=source, language=PYTHON, values=values)


def _recognised(document: Document, format_name: str | None) -> tuple[Ecosystem, Document]:
    """Return the ecosystem and the object as a document of its language; plain Python where none recognises it."""
    candidates = [ecosystem_named(format_name)] if format_name else [e for e in ECOSYSTEMS if not isinstance(e, Plain)]
    for ecosystem in candidates:
        for language in (PYTHON, YAML, JSON):
            spoken = replace(document, language=language)
            if format_name is not None or ecosystem.recognises(spoken):
                return ecosystem, spoken
    return Plain(PYTHON), document


def _completed(ecosystem: Ecosystem, document: Document, keys: KnobKeys, assumed: Recipe) -> Recipe:
    """Read the recipe; what the object does not say is as assumed."""
    found = recipe_within(document, ecosystem, keys)
    if not isinstance(ecosystem, Plain):
        return found
    absent = {str(name): getattr(assumed, name) for name in RECIPE_KNOBS if not keys.get(name)}
    if keys.get(KnobName.GLOBAL_BATCH_SIZE):  # replicas share it later
        return replace(found, **{**absent, str(KnobName.ACCUMULATION_STEPS): found.accumulation_steps})
    return replace(found, world_size=assumed.world_size, **absent)


def _usual_keys(values: Mapping[str, Any], declared: KnobKeys, where: str) -> KnobKeys:
    found = {name: _usual_key(values, name, usual, where) for name, usual in _NAMES.items() if name not in declared}
    if not found.get(KnobName.MICRO_BATCH_SIZE, True):
        usual = ", ".join(_NAMES[KnobName.MICRO_BATCH_SIZE])
        raise UsageError(
            f"no micro-batch size was found in it; looked for {usual}",
            where=where,
            hint='name its place with knobs={"micro_batch_size": "..."}',
        )
    return with_one_accumulation({**found, **declared}, values)


def _usual_key(values: Mapping[str, Any], name: KnobName, usual: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Return the place of a knob: at the top by its first usual name, else the only one below."""
    for leaf in usual:
        single = [each for each in keys_called(values, leaf) if not isinstance(values[each], Mapping)]
        if single:
            return (single[0],)
    for leaf in usual:
        places = list(_places(values, leaf))
        if len(places) > 1:
            choices = ", ".join(places)
            raise UsageError(
                f"{name} may be any of {choices}", where=where, hint=f'say which with knobs={{"{name}": "{places[0]}"}}'
            )
        if places:
            return (places[0],)
    return ()


def _places(values: Mapping[str, Any], leaf: str, prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _places(value, leaf, f"{prefix}{key}.")
        elif is_called(str(key), leaf):
            yield f"{prefix}{key}"
