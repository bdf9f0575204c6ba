"""A plan's knobs as a mapping, or as a line for a command of the user's."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from memplan.configs.assignments import Assignment
from memplan.configs.ecosystems.detectron2 import Detectron2
from memplan.configs.knobs import RECIPE_KNOBS
from memplan.configs.layout.command_lines import as_flags, as_pairs, cfg_options
from memplan.configs.precision_words import ACCELERATE_WORDS, LIGHTNING_WORDS
from memplan.errors import UsageError, hint_on_names
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from memplan.recipe import Recipe


class OverrideStyle(StrEnum):
    """How overrides are written.

    ``dict`` is a mapping by the keys of the user's config, or by memplan's names where there is none; ``transformers``
    are arguments of ``TrainingArguments``, ``lightning`` those of ``Trainer``, ``accelerate`` those of ``Accelerator``.
    The others are lines: ``flags`` as argparse takes them, ``hydra`` with ``++``, ``cfg-options`` as OpenMMLab's tools
    take them, ``key-value`` as detectron2's and yacs's do.
    """

    DICT = "dict"
    FLAGS = "flags"
    HYDRA = "hydra"
    CFG_OPTIONS = "cfg-options"
    KEY_VALUE = "key-value"
    TRANSFORMERS = "transformers"
    LIGHTNING = "lightning"
    ACCELERATE = "accelerate"


def style_named(name: str) -> OverrideStyle:
    """Return a style by its name.

    Raises:
        UsageError: there is none of that name.
    """
    try:
        return OverrideStyle(name)
    except ValueError:
        raise UsageError(f"override style {name!r} is not known", hint=hint_on_names(name, OverrideStyle)) from None


def knob_values(recipe: Recipe, *, named: Iterable[str]) -> dict[str, Any]:
    """Return a recipe's knobs by memplan's names; without the learning rate where it is the workload's own.

    Args:
        recipe: the setting.
        named: knobs that a caller has names of its own for.

    Raises:
        UsageError: one of them is no knob.
    """
    for name in named:
        if name not in RECIPE_KNOBS:
            raise UsageError(f"there is no knob {name!r}", where="knobs", hint=f"use {', '.join(RECIPE_KNOBS)}")
    rate = {} if recipe.learning_rate is None else {"learning_rate": recipe.learning_rate}
    return {
        "micro_batch_size": recipe.micro_batch_size,
        "accumulation_steps": recipe.accumulation_steps,
        "precision": str(recipe.precision),
        **rate,
        "activation_checkpointing": recipe.activation_checkpointing,
    }


def framework_arguments(recipe: Recipe, style: OverrideStyle) -> dict[str, Any] | None:
    """Return a recipe as the arguments of a framework's own class; None for styles that are not a framework's.

    Sources: ``transformers.TrainingArguments``, ``lightning.Trainer`` and ``accelerate.Accelerator`` as documented.
    """
    steps, precision = recipe.accumulation_steps, recipe.precision
    if style is OverrideStyle.TRANSFORMERS:
        return _training_arguments(recipe)
    if style is OverrideStyle.LIGHTNING:
        return {"accumulate_grad_batches": steps, "precision": _word(precision, LIGHTNING_WORDS)}
    if style is OverrideStyle.ACCELERATE:
        return {"gradient_accumulation_steps": steps, "mixed_precision": _word(precision, ACCELERATE_WORDS)}
    return None


def _word(precision: Precision, words: Mapping[Precision, str]) -> str:
    """Return a framework's word for a precision; what it has none for, such as TF32, is fp32 to it."""
    return words.get(precision, words[Precision.FP32])


def _training_arguments(recipe: Recipe) -> dict[str, Any]:
    found: dict[str, Any] = {
        "per_device_train_batch_size": recipe.micro_batch_size,
        "gradient_accumulation_steps": recipe.accumulation_steps,
        "bf16": recipe.precision is Precision.BF16,
        "fp16": recipe.precision is Precision.FP16,
        "gradient_checkpointing": recipe.activation_checkpointing,
    }
    if recipe.precision is Precision.TF32:  # refused by TrainingArguments where the card has none, so only on request
        found["tf32"] = True
    if recipe.learning_rate is not None:
        found["learning_rate"] = recipe.learning_rate
    return found


def line_of(values: Mapping[str, Any], style: OverrideStyle) -> str:
    """Write overrides as words for a command; empty where there are none.

    Raises:
        UsageError: a value, such as a whole section, has no form in this style.
    """
    if not values:
        return ""
    changes = [Assignment(key=key, value=value, reason="") for key, value in values.items()]
    line = _WRITERS[style](changes)
    if line is None:
        nested = ", ".join(key for key, value in values.items() if isinstance(value, dict | list | tuple))
        raise UsageError(f"{nested} cannot be said in the style {style!r}", hint='use "dict", or patch the config')
    return line


_WRITERS: Mapping[OverrideStyle, Callable[[list[Assignment]], str | None]] = {
    OverrideStyle.FLAGS: as_flags,
    OverrideStyle.HYDRA: lambda changes: as_pairs(changes, prefix="++"),
    OverrideStyle.CFG_OPTIONS: cfg_options,
    OverrideStyle.KEY_VALUE: Detectron2().override_line,
}
