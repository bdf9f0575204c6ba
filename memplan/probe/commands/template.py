"""A training command as the user writes it, with placeholders for what a trial sets. Pure: text in, text out.

``{micro_batch_size}`` must be there, or ``{global_batch_size}`` for a script that takes the samples of an optimizer
step and shares them among its replicas, or ``{patched_config}`` for one that reads them from a config alone: a copy of
it in which the trial's values are set. ``{config}``, ``{steps}``, ``{precision}``, ``{accumulation_steps}`` and
``{learning_rate}`` may be. A script with its own words for precisions gets them as
``{precision:fp32=32-true,bf16=bf16-mixed}``, or as whole options: ``{precision:fp32=,bf16=--bf16}``. ``{{`` and ``}}``
are braces of the command's own, and shell variables such as ``${HOME}`` are left alone.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from memplan.errors import UsageError, hint_on_names
from memplan.recipe import Precision, parse_precision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.recipe import Recipe
    from memplan.workload import TrainingCommand

_PIECE = re.compile(r"\{\{|\}\}|\$\{[^}]*\}|\{(?P<name>[A-Za-z_]\w*)(?::(?P<words>[^{}]*))?\}")
_WHERE = "command"
T = TypeVar("T")


class PlaceholderName(StrEnum):
    """The placeholders that a command may contain."""

    MICRO_BATCH_SIZE = "micro_batch_size"
    GLOBAL_BATCH_SIZE = "global_batch_size"
    CONFIG = "config"
    PATCHED_CONFIG = "patched_config"
    STEPS = "steps"
    PRECISION = "precision"
    ACCUMULATION_STEPS = "accumulation_steps"
    LEARNING_RATE = "learning_rate"


_ALSO_CALLED = {  # as scripts call them
    PlaceholderName.MICRO_BATCH_SIZE: ("b", "bs", "bsz", "batch", "batch_size", "batchsize"),
    PlaceholderName.ACCUMULATION_STEPS: (
        "accum",
        "accum_iter",
        "accumulate_grad_batches",
        "gradient_accumulation_steps",
    ),
    PlaceholderName.LEARNING_RATE: ("lr", "rate"),
    PlaceholderName.PRECISION: ("amp", "dtype", "mixed_precision"),
    PlaceholderName.STEPS: ("iters", "max_steps"),
}
_BATCH_SIZES = (PlaceholderName.MICRO_BATCH_SIZE, PlaceholderName.GLOBAL_BATCH_SIZE, PlaceholderName.PATCHED_CONFIG)
_UNCLOSED = re.compile(rf"(?<!\$)\{{(?P<name>{'|'.join(PlaceholderName)})\b[^\s}}]*")
_WHERE_THE_BATCH_GOES = (
    "write it where your script takes its batch size, e.g. --batch-size {micro_batch_size}, "
    "or {global_batch_size} where that is of all replicas; where it reads it from CONFIG alone, write {patched_config} "
    "in the place of "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """One placeholder of a command.

    Args:
        name: what it stands for.
        words: for a precision, the command's own word for each that it knows; None where memplan's names do.
    """

    name: PlaceholderName
    words: Mapping[Precision, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTemplate:
    """A parsed command: literal text and placeholders, in order."""

    pieces: tuple[str | Placeholder, ...]

    def has(self, name: PlaceholderName) -> bool:
        """Whether the command has a placeholder of that name."""
        return any(isinstance(piece, Placeholder) and piece.name is name for piece in self.pieces)

    @property
    def batch_placeholder(self) -> PlaceholderName:
        """The placeholder by which the command gets its batch size."""
        return next(each for each in _BATCH_SIZES if self.has(each))

    def sets(self, name: PlaceholderName) -> bool:
        """Whether the command takes what a placeholder stands for, by itself or in the config that it reads."""
        return self.has(name) or self.has(PlaceholderName.PATCHED_CONFIG)

    @property
    def precisions(self) -> tuple[Precision, ...] | None:
        """The precisions that the command has words for; None where it takes memplan's names, or none at all."""
        spelled = [piece.words for piece in self.pieces if isinstance(piece, Placeholder) and piece.words is not None]
        return tuple(spelled[0]) if spelled else None


def parse_template(text: str) -> CommandTemplate:
    """Parse a command.

    Raises:
        UsageError: a placeholder is not known or not understood, or there is none for the batch.
    """
    pieces: list[str | Placeholder] = []
    end = 0
    for match in _PIECE.finditer(text):
        pieces += [text[end : match.start()], _piece(match)]
        end = match.end()
    template = CommandTemplate(pieces=tuple(piece for piece in (*pieces, text[end:]) if piece != ""))
    for piece in template.pieces:
        _refuse_unclosed(piece)
    if not any(map(template.has, _BATCH_SIZES)):
        path = "{config}" if template.has(PlaceholderName.CONFIG) else "the config's path"
        hint = _WHERE_THE_BATCH_GOES + path
        raise UsageError("the command has no {micro_batch_size}", where=_WHERE, hint=hint)
    return template


def _piece(match: re.Match[str]) -> str | Placeholder:
    if match["name"] is None:
        return {"{{": "{", "}}": "}"}.get(match[0], match[0])
    try:
        name = PlaceholderName(match["name"])
    except ValueError:
        raise UsageError(
            f"placeholder {match[0]} is not known",
            where=_WHERE,
            hint=_hint_on_placeholder(match["name"]),
        ) from None
    if match["words"] is None:
        return Placeholder(name=name)
    if name is not PlaceholderName.PRECISION:
        raise UsageError(f"placeholder {match[0]} takes no words", where=_WHERE, hint=f"write {{{name}}}")
    return Placeholder(name=name, words=_words(match["words"]))


def _hint_on_placeholder(name: str) -> str:
    known = [f"{{{each}}}" for each in PlaceholderName]
    called = next((each for each, others in _ALSO_CALLED.items() if name.lower() in others), name)
    meant = hint_on_names(f"{{{called}}}", known, otherwise=f"known are {', '.join(known)};")
    return f"{meant} write {{{{ and }}}} for braces of the command's own"


def _refuse_unclosed(piece: str | Placeholder) -> None:
    unclosed = _UNCLOSED.search(piece) if isinstance(piece, str) else None
    if unclosed is not None:
        hint = f"write {{{unclosed['name']}}}, or {{{{ and }}}} for braces of the command's own"
        raise UsageError(f"placeholder {unclosed[0]} is not closed", where=_WHERE, hint=hint)


def _words(text: str) -> dict[Precision, str]:
    words: dict[Precision, str] = {}
    for entry in text.split(","):
        precision, equals, word = entry.partition("=")
        if not equals:
            raise UsageError(
                f"{{precision:{text}}} is not understood", where=_WHERE, hint="write {precision:fp32=WORD,bf16=WORD}"
            )
        words[parse_precision(precision)] = word
    return words


def command_obstacle(template: CommandTemplate, current: Recipe, recipe: Recipe) -> str | None:
    """Return why a command cannot express the change from one recipe to another; None where it can."""
    changes = {
        PlaceholderName.PRECISION: recipe.precision is not current.precision,
        PlaceholderName.ACCUMULATION_STEPS: recipe.accumulation_steps != current.accumulation_steps,
    }
    for name, is_changed in changes.items():
        if is_changed and not template.sets(name):
            return f"the command has no {{{name}}}"
    if template.precisions is not None and recipe.precision not in template.precisions:
        return f"the command has no word for {recipe.precision}"
    return None


def fill_template(
    template: CommandTemplate,
    recipe: Recipe,
    *,
    config_path: str | None,
    steps: int | None,
    patched_path: str | None = None,
) -> str:
    """Write the command line for one recipe.

    Args:
        template: the command.
        recipe: what to set.
        config_path: what ``{config}`` stands for.
        steps: what ``{steps}`` stands for, in forward passes; None leaves the placeholder, for the user's own length.
        patched_path: what ``{patched_config}`` stands for; None for the config itself, patched.

    Raises:
        UsageError: the command asks for something that is not known, or has no word for the recipe's precision.
    """
    paths = {PlaceholderName.CONFIG: config_path, PlaceholderName.PATCHED_CONFIG: patched_path or config_path}
    return "".join(
        piece if isinstance(piece, str) else _value(piece, recipe, paths.get(piece.name), steps)
        for piece in template.pieces
    )


def fill_command(command: TrainingCommand, recipe: Recipe, *, patched_path: str | None = None) -> str:
    """Write the command line of one trial.

    Args:
        command: the command.
        recipe: what to set.
        patched_path: the copy that ``{patched_config}`` stands for; None for the config itself.

    Raises:
        UsageError: as for :func:`fill_template`.
    """
    template = parse_template(command.template)
    passes = command.steps * recipe.accumulation_steps  # some scripts count these; those that count steps end before
    return fill_template(template, recipe, config_path=command.config_path, steps=passes, patched_path=patched_path)


def _value(placeholder: Placeholder, recipe: Recipe, config_path: str | None, steps: int | None) -> str:
    match placeholder.name:
        case PlaceholderName.STEPS:
            return "{steps}" if steps is None else str(steps)
        case PlaceholderName.CONFIG | PlaceholderName.PATCHED_CONFIG as name:
            return shlex.quote(_known(config_path, f"{{{name}}}", "name the config, too"))
        case PlaceholderName.LEARNING_RATE:
            hint = "name a config that sets it, or write the rate into the command"
            return repr(_known(recipe.learning_rate, "{learning_rate}", hint))
        case PlaceholderName.PRECISION:
            return _precision_word(placeholder, recipe.precision)
        case counted:  # batch sizes and accumulation, called as the recipe calls them
            return str(getattr(recipe, counted))


def _precision_word(placeholder: Placeholder, precision: Precision) -> str:
    if placeholder.words is None:
        return str(precision)
    if precision not in placeholder.words:
        known = ", ".join(placeholder.words)
        raise UsageError(f"the command has no word for {precision}", where=_WHERE, hint=f"it has them for {known}")
    return placeholder.words[precision]


def _known(value: T | None, name: str, hint: str) -> T:
    if value is None:
        raise UsageError(f"the command has {name}, and memplan does not know it", where=_WHERE, hint=hint)
    return value
