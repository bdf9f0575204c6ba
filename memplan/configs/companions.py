"""Companions of a config, which must agree with it and are patched with it: DeepSpeed's settings, accelerate's file.

transformers rejects DeepSpeed settings that differ from the TrainingArguments, ``"auto"`` apart, whether they are in a
JSON file that the arguments name or are written out among them. accelerate's ``mixed_precision`` is what a Trainer
uses where its arguments switch neither fp16 nor bf16 on, and with DeepSpeed its accumulation overrides the script's.
So every value that they set changes with the config, and nothing else in them does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.configs.ecosystems.accelerate import DEEPSPEED_FILE, PROCESSES, Accelerate
from memplan.configs.ecosystems.deepspeed import DeepSpeed, concrete_keys, concrete_precision, replicas_beside
from memplan.configs.ecosystems.huggingface import DEEPSPEED_KEY
from memplan.configs.evaluation.loading import load_document
from memplan.configs.keys import get, is_count
from memplan.configs.knobs import declared_precision
from memplan.configs.languages.registry import SHELL
from memplan.configs.languages.shell_source import LAUNCHER, launcher_line
from memplan.configs.user_config import KnobName
from memplan.launchers import world_size_of_command
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan.configs.documents import Document
    from memplan.configs.ecosystems.ecosystem import Ecosystem
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig
    from memplan.recipe import Recipe

_DEEPSPEED, _ACCELERATE = DeepSpeed.name, Accelerate.name
_SECTIONS = {DEEPSPEED_KEY: "the deepspeed section", LAUNCHER: "accelerate launch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """A file that must agree with a config, or a section of the config that must.

    Args:
        document: the file; for a section the config's own, with the section's values.
        format_name: the ecosystem it belongs to.
        within: key of the section; empty for a file of its own.
    """

    document: Document
    format_name: str
    within: str = ""

    @property
    def keys(self) -> KnobKeys:
        """The knobs that must follow the config's; FSDP's own checkpointing is not the one that arguments switch."""
        if self.format_name == _DEEPSPEED:
            return DeepSpeed().own_keys(self.document)
        found = Accelerate().own_keys(self.document)
        return {name: found[name] for name in (KnobName.PRECISION, KnobName.ACCUMULATION_STEPS)}

    @property
    def spelled_out(self) -> tuple[str, ...]:
        """The keys that must agree with the config and hold an explicit value."""
        if self.format_name == _DEEPSPEED:
            return concrete_keys(self.document.values)
        return tuple(key for found in self.keys.values() for key in found)


def companions_of(document: Document, beside: Sequence[Companion], ecosystem: Ecosystem) -> tuple[Companion, ...]:
    """Return the companions of a config, at most one of each kind, including those that leave everything to the config.

    Args:
        document: the config.
        beside: the files that the user named with it; they go before those that are named in a file, which are looked
            for beside that file and in the working directory.
        ecosystem: the config's ecosystem.

    Raises:
        ConfigError: a file that is named is there, but cannot be read.
    """
    named = ecosystem.companion_names(document)
    of_launcher = _companions(document, named.get(_ACCELERATE), _ACCELERATE, (".yaml", ".yml"))
    files = [*_of_kind(_ACCELERATE, beside), *of_launcher][:1]
    launchers = [*(_launcher_section(document) if named else ()), *files]
    settings = [*_of_kind(_DEEPSPEED, beside), *_deepspeed_of(document, named.get(_DEEPSPEED))]
    for each in launchers:
        settings += _deepspeed_of(each.document, get(each.document.values, DEEPSPEED_FILE))
    return (*settings[:1], *launchers)


def recipe_beside(companion: Companion, recipe: Recipe) -> Recipe:
    """Return the recipe of the companions of a config that sets the given one.

    Raises:
        ConfigError: DeepSpeed's ``train_batch_size`` is no multiple of theirs.
    """
    if companion.format_name != _DEEPSPEED:
        return recipe
    precision = concrete_precision(companion.document.values) or recipe.precision
    return replace(recipe, precision=precision, world_size=replicas_beside(companion.document, recipe))


def launched(recipe: Recipe, keys: KnobKeys, companions: tuple[Companion, ...]) -> Recipe:
    """Return a config's recipe with the launcher's precision, where the config itself switches none on.

    Raises:
        ConfigError: the launcher's is not a precision memplan knows.
    """
    launchers = [each for each in companions if each.keys.get(KnobName.PRECISION)]
    precisions = [declared_precision(each.document, each.keys) for each in launchers]
    decides = not keys.get(KnobName.PRECISION) and not recipe.precision.is_autocast
    first = precisions[0] if precisions else None  # the command's own flag goes before its file
    return replace(recipe, precision=first) if decides and first is not None and first.is_autocast else recipe


def replicas_launched(document: Document, companions: tuple[Companion, ...], ecosystem: Ecosystem) -> int | None:
    """Return how many replicas the launcher of a config starts: a script's own, else that of accelerate's file."""
    text = document.source.text
    said = world_size_of_command(launcher_line(text), text) if document.language is SHELL else None
    files = (
        document.values if isinstance(ecosystem, Accelerate) else {},
        *(each.document.values for each in companions),
    )
    counts = (get(each, PROCESSES) for each in files)
    return said or next((each for each in counts if is_count(each)), None)


def change_beside(companion: UserConfig, change: RecipeChange) -> RecipeChange:
    """Return a config's change as it applies to a companion, which may be written for another number of replicas."""
    precision = change.recipe.precision
    if companion.format_name == _ACCELERATE and precision is Precision.TF32:
        precision = Precision.FP32  # TF32 is the arguments' own
    recipe = replace(change.recipe, world_size=companion.recipe.world_size, precision=precision)
    return replace(change, recipe=recipe)


def remarks_on(companions: tuple[Companion, ...], document: Document, ecosystem: Ecosystem) -> Iterator[str]:
    """Name the companions of a config, and those it refers to that are missing."""
    for each in companions:
        name = _SECTIONS.get(each.within, each.document.path.name)
        if each.spelled_out:
            rest = "the rest of the arguments" if each.within else "this file"
            yield f"{name} sets {', '.join(each.spelled_out)}: it is changed with {rest}"
        elif each.format_name == _DEEPSPEED:
            yield f"{name} is all 'auto', so it follows the arguments"
        if each.format_name == _ACCELERATE:
            yield from (f"{name}: {remark}" for remark in Accelerate().remarks(each.document, each.keys))
    for kind, what in ecosystem.companion_names(document).items():
        if isinstance(what, str) and not _of_kind(kind, companions):
            yield f"what {what} sets and is not 'auto' must agree with the patched values; memplan leaves it alone"


def _of_kind(kind: str, companions: Sequence[Companion]) -> list[Companion]:
    return [each for each in companions if each.format_name == kind]


def _launcher_section(document: Document) -> Iterator[Companion]:
    """Yield the options of ``accelerate launch`` itself in a launch script."""
    section = document.values.get(LAUNCHER)
    if document.language is SHELL and isinstance(section, Mapping):
        yield Companion(document=replace(document, values=dict(section)), format_name=_ACCELERATE, within=LAUNCHER)


def _deepspeed_of(document: Document, named: Any) -> Iterator[Companion]:
    """Yield the DeepSpeed settings in a named file, or those written out in place of a name."""
    if isinstance(named, Mapping) and named:
        section = replace(document, values=dict(named))
        yield Companion(document=section, format_name=_DEEPSPEED, within=DEEPSPEED_KEY)
    yield from _companions(document, named, _DEEPSPEED, (".json",))


def _companions(document: Document, named: Any, kind: str, suffixes: tuple[str, ...]) -> Iterator[Companion]:
    """Yield the named file, next to the config or in the working directory; nothing where there is none."""
    if not isinstance(named, str) or not named.endswith(suffixes):
        return
    there = (each / named for each in (document.path.parent, Path.cwd()) if (each / named).is_file())
    path = next(there, None)
    if path is not None:
        yield Companion(document=load_document(path), format_name=kind)
