"""Read a user's config: its ecosystem, its recipe and its knobs."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.configs.companions import companions_of, launched, recipe_beside, remarks_on, replicas_launched
from memplan.configs.ecosystems.plain import Plain
from memplan.configs.ecosystems.registry import ecosystem_of
from memplan.configs.ecosystems.usual_names import is_length
from memplan.configs.keys import contains, followed, get, is_number_of_steps, lookup, near_matches
from memplan.configs.knobs import LENGTH_KNOBS, knobs_at
from memplan.configs.languages.argparse_line import Unsaid
from memplan.configs.options import knob_names, options_of
from memplan.configs.originals import find_original, original_within, remarks_on_sidecar
from memplan.configs.precision_words import switched_on
from memplan.configs.project_folders import search_path_of
from memplan.configs.several_files import load_named
from memplan.configs.sharding_remarks import remarks_on_sharding
from memplan.configs.user_config import KnobName, UserConfig
from memplan.configs.workload_targets import target_of
from memplan.errors import ConfigError, UsageError
from memplan.recipe import Precision, Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from memplan.configs.companions import Companion
    from memplan.configs.documents import Document
    from memplan.configs.ecosystems.ecosystem import Ecosystem
    from memplan.configs.user_config import KnobKeys, MemplanOptions, OriginalRecipe


_RIVALS = {
    KnobName.ACCUMULATION_STEPS: KnobName.GLOBAL_BATCH_SIZE,
    KnobName.GLOBAL_BATCH_SIZE: KnobName.ACCUMULATION_STEPS,
}


def read_config(
    path: Path,
    *more: Path,
    format_name: str | None = None,
    knob_keys: Mapping[str, str] | None = None,
    workload_target: str | None = None,
    micro_batch_size: int | None = None,
    command_line: str = "",
) -> UserConfig:
    """Read a config file of any known ecosystem.

    A Python config is evaluated in a child process with a time limit; its workload is not loaded.

    Args:
        path: the config file.
        more: files of the training command that follow it: overlays, or companions that are patched together with it.
        format_name: ecosystem to read it as; None recognises it by its content.
        knob_keys: knob name -> dotted key, on top of what the ecosystem, the project and the config declare.
        workload_target: ``package.module:function``, or its module's file; None takes what the config or the project
            names, or what makes one of any config of the ecosystem.
        micro_batch_size: what the recipe has where the config sets none; None refuses such a config.
        command_line: the training command, which may say other values of a script's arguments.

    Raises:
        ConfigError: a file cannot be read, the files do not go together, a knob's key is not there, or a value is out
            of range.
    """
    named = load_named((path, *more), format_name=format_name)
    document, ecosystem = named.config, ecosystem_of(named.config, format_name=format_name)
    options = options_of(document.path, document.values)
    found = ecosystem.values_said(document, command_line)
    said = {key: value for key, value in found.items() if value is not Unsaid.UNKNOWN}
    started = replace(document, values=_started_with(document.values, found))
    declared = _declared(started, options, knob_keys or {})
    keys = followed_keys(started, with_declared(ecosystem.all_keys(started), declared))
    beside = companions_of(document, named.beside, ecosystem)
    named_target = workload_target or options.workload or ecosystem.workload_target
    target = None if named_target is None else target_of(named_target, where=str(document.path))
    original = find_original(document)
    recipe = launched(_recipe(ecosystem, started, keys, micro_batch_size), keys, beside)
    return UserConfig(
        document=document,
        format_name=ecosystem.name,
        recipe=recipe,
        knobs=knobs_at(started, keys),
        workload_target=target,
        search_path=search_path_of(document.path, target),
        original=original,
        memplan_options=options,
        notes=(
            *_remarks_on(started, ecosystem, keys, declared=declared),
            *_remarks_on_command(found, keys),
            *remarks_on(beside, document, ecosystem),
            *remarks_on_sidecar(document),
            *_remarks_on_lost_lengths(document, original, keys),
            *remarks_on_sharding([document.values, *(each.document.values for each in beside)]),
        ),
        replicas=replicas_launched(document, beside, ecosystem),
        companions=tuple(_companion(each, document, recipe) for each in beside if each.spelled_out),
        said=said,
    )


def _declared(document: Document, options: MemplanOptions, given: Mapping[str, str]) -> KnobKeys:
    """Return the keys that the user declares for knobs: the config, its project, and the caller, who wins."""
    where = str(document.path)
    declared = {**knob_names(options.knobs, where=where), **knob_names(given, where="--map")}
    require_present(document, declared)
    return declared


def with_declared(own: KnobKeys, declared: KnobKeys) -> KnobKeys:
    """Return the keys of knobs in the order of their declaration, which wins over an ecosystem's own.

    Declared lengths join those that the ecosystem knows, and are no longer counted as it would count them. Of
    accumulation and the global batch, from which it follows, what is declared takes the place of the other.
    """
    own = {name: found for name, found in own.items() if _RIVALS.get(name) not in declared}
    counted = {key for name in LENGTH_KNOBS for key in declared.get(name, ())}
    lengths = {
        name: (*(key for key in own.get(name, ()) if key not in counted), *declared.get(name, ()))
        for name in LENGTH_KNOBS
        if counted and (name in own or name in declared)
    }
    return {**declared, **own, **declared, **lengths}


def _companion(companion: Companion, named_in: Document, recipe: Recipe) -> UserConfig:
    """Describe a companion of a config: a file that it names, or a section of it."""
    own = find_original(named_in if companion.within else companion.document)
    return UserConfig(
        document=companion.document,
        format_name=companion.format_name,
        recipe=recipe_beside(companion, recipe),
        knobs=knobs_at(companion.document, companion.keys),
        original=original_within(own, companion.within) if companion.within else own,
        within=companion.within,
    )


def _recipe(ecosystem: Ecosystem, document: Document, keys: KnobKeys, micro_batch_size: int | None) -> Recipe:
    values, name = document.resolved_values, KnobName.MICRO_BATCH_SIZE
    if micro_batch_size is not None and not keys.get(name):
        values, keys = {**values, name: micro_batch_size}, {**keys, name: (name,)}
    return recipe_within(replace(document, values=values), ecosystem, keys)


def recipe_within(document: Document, ecosystem: Ecosystem, keys: KnobKeys) -> Recipe:
    """Return the recipe that a config sets.

    Raises:
        ConfigError: it sets none, or one that cannot be.
    """
    try:
        return ecosystem.recipe(document, keys)
    except UsageError as error:
        raise ConfigError(error.problem, where=str(document.path), hint=error.hint) from None


def followed_keys(document: Document, keys: KnobKeys) -> KnobKeys:
    """Return the keys that really hold the knobs' values, following interpolations at the given ones."""
    return {name: tuple(followed(document.values, key) for key in found) for name, found in keys.items()}


def require_present(document: Document, keys: KnobKeys) -> None:
    """Make sure that a config has the keys that were declared for knobs.

    Raises:
        ConfigError: one of them is not there.
    """
    for name, found in keys.items():
        for key in found:
            if not contains(document.values, key):
                _require_value(document, name, key)
                hint = _hint_on_key(document, key)
                raise ConfigError(f"there is no key {key!r} for {name}", where=str(document.path), hint=hint)


def _hint_on_key(document: Document, key: str) -> str:
    if "=" in key:  # of another knob, behind a comma
        return "give --map once for each knob"
    near = near_matches(document.values, key)
    return f"did you mean {' or '.join(near)}?" if near else "name a key of the config"


def _require_value(document: Document, name: KnobName, key: str) -> None:
    """Tell a key that the file has, but sets no known value, from one that is not there.

    Raises:
        ConfigError: the file has the key.
    """
    location = document.language.locate(document.source.text, key)
    if location is not None and location.obstacle is not None:
        problem = f"{key} cannot be {name}: {location.obstacle}"
        raise ConfigError(problem, where=f"{document.path}:{location.line}", hint="give it a value there")


def _remarks_on(document: Document, ecosystem: Ecosystem, keys: KnobKeys, *, declared: KnobKeys) -> tuple[str, ...]:
    """Return what a reader should know of the config itself."""
    return (
        *document.notes,
        *ecosystem.remarks(document, keys),
        *(_remarks_on_names(ecosystem.own_keys(document), declared) if isinstance(ecosystem, Plain) else ()),
        *_remarks_on_precision(document, declared),
        *_remarks_on_environment(document, keys),
    )


def _remarks_on_lost_lengths(document: Document, original: OriginalRecipe | None, keys: KnobKeys) -> list[str]:
    """Name lengths that memplan has changed before, and that nothing tells it to change again."""
    known = {key for keys_of_knob in keys.values() for key in keys_of_knob}
    before = {} if original is None else original.values
    lost = [
        f"{key} (from {value} to {now})"
        for key, value in before.items()
        if key not in known and is_length(key) and is_number_of_steps(now := get(document.values, key)) and now != value
    ]
    if not lost:
        return []
    it = "it" if len(lost) == 1 else "them"
    return [f"memplan changed {', '.join(lost)} before, and leaves {it} so now: name {it} by --map again"]


def _remarks_on_environment(document: Document, keys: KnobKeys) -> list[str]:
    """Name what was taken from the environment, in which the training must then be started too."""
    found = (each for keys_of_knob in keys.values() for each in keys_of_knob)
    names = dict.fromkeys(
        name for key in found for name in document.language.environment_behind(document.source.text, key)
    )
    taken = [f"{each}={os.environ[each]}" for each in names if each in os.environ]
    return [f"taken from the environment: {', '.join(taken)}"] if taken else []


def _started_with(values: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a script starts with, as far as they are known."""
    started = {**values, **said}
    return {key: value for key, value in started.items() if value is not Unsaid.UNKNOWN}


def _remarks_on_command(said: Mapping[str, Any], keys: KnobKeys) -> list[str]:
    """Name what was taken from the training command, and what is not known of it."""
    known = {each for found in keys.values() for each in found}
    taken = [f"{key}={value}" for key, value in said.items() if key in known]
    unknown = [key for key, value in said.items() if value is Unsaid.UNKNOWN]
    said_of_taken = f"taken from the command: {', '.join(taken)}"
    said_of_unknown = f"what the command says of {', '.join(unknown)} is not known, and left alone"
    return [*([said_of_taken] if taken else ()), *([said_of_unknown] if unknown else ())]


def _remarks_on_names(own: KnobKeys, declared: KnobKeys) -> list[str]:
    taken = [f"{key} as {name}" for name, (key, *_) in own.items() if name not in declared]
    return [f"taken by their names: {', '.join(taken)}; --map says otherwise"] if taken else []


def _remarks_on_precision(document: Document, keys: KnobKeys) -> list[str]:
    found = keys.get(KnobName.PRECISION)
    if not found or keys.get(KnobName.AMP_DTYPE) or not isinstance(lookup(document.values, found[0]), bool):
        return []
    on = switched_on(found[0])
    other = Precision.FP16 if on is Precision.BF16 else Precision.BF16
    return [f"{found[0]} is only on or off, on being taken as {on}: {other} needs --map amp_dtype=KEY"]
