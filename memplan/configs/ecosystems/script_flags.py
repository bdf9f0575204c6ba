"""Arguments of training scripts: the flags of a launch script's command, or the defaults a Python script declares.

The usual names are looked for in order; others are declared. Scripts in the style of MAE compute their rate where
``--lr`` is unset, as ``blr * global batch / 256``, accumulation (``--accum_iter``) included; it is not written then.
Lengths in steps are those of accelerate's and diffusers' examples, which count optimizer steps. Lengths in iterations
are left alone: they are optimizer steps to Megatron-LM's ``--train-iters`` and forward/backward passes to others.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from memplan.configs.ecosystems.accelerate import Accelerate, launch_file_named_in
from memplan.configs.ecosystems.ecosystem import Ecosystem, torch_loader_keys
from memplan.configs.ecosystems.usual_names import (
    MAE_STEPS,
    STEP_LENGTHS,
    USUAL_NAMES,
    declared_without_value,
    listed,
    remark_on_accumulation,
    remark_on_lengths,
    remark_on_rates,
    remark_on_unknown_words,
    with_one_accumulation,
)
from memplan.configs.keys import is_number_of_steps, keys_called
from memplan.configs.knob_changes import additions, obstacle_of_single_values, obstacle_of_switches
from memplan.configs.knobs import RECIPE_KNOBS
from memplan.configs.languages.argparse_line import Unsaid, values_said
from memplan.configs.languages.argparse_source import flag_in, switch_in
from memplan.configs.languages.registry import ARGUMENTS, SHELL
from memplan.configs.layout.command_lines import as_flags, as_switched_flags
from memplan.configs.precision_words import precision_of
from memplan.configs.user_config import KnobName, PatchStyle
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.languages.registry import Language
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig
    from memplan.recipe import Recipe

_NAMES = {**USUAL_NAMES, KnobName.PRECISION: (*USUAL_NAMES[KnobName.PRECISION], "fp16", "bf16")}
_MAE_RATE = "blr"
_FLOORS = ("min_lr", "warmup_lr")


class _ScriptFlags(Ecosystem):
    """What both kinds of script share."""

    language: Language
    loader_keys: ClassVar[KnobKeys] = {
        **torch_loader_keys(""),
        KnobName.LOADER_WORKERS: ("num_workers", "workers"),
        KnobName.PIN_MEMORY: ("pin_mem", "pin_memory"),
    }

    def recognises(self, document: Document) -> bool:
        """Recognise a script with a batch size under one of its usual names."""
        return document.language is self.language and any(
            keys_called(document.values, each) for each in _NAMES[KnobName.MICRO_BATCH_SIZE]
        )

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the first of the usual names for each knob, of switches of precision the first that is on.

        A rate that the script computes does not count.
        """
        values = document.values
        named = {
            name: tuple(key for each in usual for key in keys_called(values, each) if _is_single(values[key]))
            for name, usual in _NAMES.items()
        }
        found = {name: keys[:1] for name, keys in named.items()}
        found[KnobName.PRECISION] = _precision_in_force(values, named[KnobName.PRECISION])
        counted = (each for each in found[KnobName.ACCUMULATION_STEPS] if not isinstance(values[each], bool))
        found[KnobName.ACCUMULATION_STEPS] = tuple(counted)
        floors = tuple(each for each in _FLOORS if isinstance(values.get(each), float) and values[each] > 0)
        return {
            **with_one_accumulation(found, values),
            KnobName.MIN_LEARNING_RATE: floors if found[KnobName.LEARNING_RATE] else (),
            KnobName.OPTIMIZER_STEPS: tuple(each for each in STEP_LENGTHS if is_number_of_steps(values.get(each))),
        }

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Say which flag was taken for which knob, and what is left to the script."""
        batch = keys.get(KnobName.MICRO_BATCH_SIZE)
        found = [f"{self.flag(document, batch[0])} is taken as the batch of one device"] if batch else []
        if _computes_rate(document):
            found.append("lr is unset: the script scales blr with the global batch itself, so no rate is written")
        elif not keys.get(KnobName.LEARNING_RATE):
            found.append(self._remark_on_no_rate(document))

        def written(key: str) -> str:
            return self.flag(document, key)

        if not keys.get(KnobName.PRECISION):
            found += remark_on_unknown_words(document.values, written=written)
        found += remark_on_accumulation(document.values, keys, written=written)
        rates = remark_on_rates(document.values, keys, written=written)
        return (*found, *_remarks_on_lengths(document, keys, written), *rates)

    def _remark_on_no_rate(self, document: Document) -> str:
        unset = declared_without_value(document, KnobName.LEARNING_RATE)
        location = None if unset is None else self.language.locate(document.source.text, unset)
        if unset is None or location is None:
            return "no learning rate was found under its usual names; name it with --map learning_rate=NAME"
        return f"{self.flag(document, unset)} is not known, as {location.obstacle}: no learning rate is written"

    def flag(self, document: Document, key: str) -> str:
        """Return how the command line of the script calls an argument."""
        hyphened = f"--{key.replace('_', '-')}"
        return hyphened if re.search(rf"(?<!\S){re.escape(hyphened)}(?![\w-])", document.source.text) else f"--{key}"

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return which flag is missing, or cannot be turned off again."""
        adds_steps = _computes_rate(config.document) and self.language is SHELL
        names = [each for each in RECIPE_KNOBS if not (adds_steps and each is KnobName.ACCUMULATION_STEPS)]
        return obstacle_of_single_values(config, recipe, names=names) or obstacle_of_switches(config, recipe)

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the script's flags with their new values; accumulation is added where it is known to take it."""
        steps = {KnobName.ACCUMULATION_STEPS: MAE_STEPS}
        found = [*super().assignments(config, change), *additions(config, change, steps)]
        return [replace(each, flag=self.flag(config.document, each.key)) for each in found]


class LaunchScript(_ScriptFlags):
    """Shell scripts that start a training with flags."""

    name = "launch-script"
    language = SHELL

    def companion_names(self, document: Document) -> Mapping[str, Any]:
        """Return the file that ``accelerate launch`` is given."""
        return {Accelerate.name: launch_file_named_in(document)}

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return the flags, of which ``argparse`` takes the last of a name; the launcher's own are not among them."""
        return None if any("." in each.key for each in assignments) else as_switched_flags(assignments)


class ScriptArguments(_ScriptFlags):
    """Python scripts that declare their arguments with ``argparse``; changed by flags, their defaults on request."""

    name = "argparse-script"
    childless_style = PatchStyle.FLAGS
    language = ARGUMENTS

    def values_said(self, document: Document, line: str) -> Mapping[str, Any]:
        """Return the arguments that a command gives to the script, but for those that it leaves open."""
        said = values_said(document.source.text, line, script=document.path.name)
        return {key: value for key, value in said.items() if value is not Unsaid.OPEN}

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return the flags as the script declares them."""
        return as_flags(assignments)

    def flag(self, document: Document, key: str) -> str:
        """Return the flag that the script declares."""
        return flag_in(document.source.text, key)

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the script's flags with their new values, of switches those that the script declares for them."""
        text = config.document.source.text
        return [
            replace(each, switch=switch_in(text, each.key, value=each.value)) if isinstance(each.value, bool) else each
            for each in super().assignments(config, change)
        ]


def _computes_rate(document: Document) -> bool:
    return _MAE_RATE in document.values and document.values.get("lr") is None


def _remarks_on_lengths(document: Document, keys: KnobKeys, written: Callable[[str], str]) -> Iterator[str]:
    """Say what lengths are presumed to count, and which are left alone."""
    counted = keys.get(KnobName.OPTIMIZER_STEPS, ())
    if counted:
        yield f"{listed(map(written, counted))} taken to count optimizer steps"
    if computed := [each for each in STEP_LENGTHS if "$" in str(document.values.get(each))]:
        yield f"{listed(map(written, computed))} worked out by the script, and left alone"
    yield from remark_on_lengths(document.values, keys, written=written)


def _precision_in_force(values: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    """Return the first of the keys for precision that lowers it; where none does, the first if its word is known."""
    lowering = (each for each in keys if precision_of(values[each], key=each) not in (None, Precision.FP32))
    return (*lowering, *(each for each in keys[:1] if _is_known_word(values[each])))[:1]


def _is_known_word(value: Any) -> bool:
    return "$" in str(value) or precision_of(value) is not None


def _is_single(value: Any) -> bool:
    return isinstance(value, int | float | str)
