"""Which form of workspace cuDNN's first choice of an engine has, by a table of decision trees.

cuDNN chooses by trained models of its own. ``benchmarks/convolution_choices.py`` asks it about convolutions of many
nets and variations of them, and fits one tree for each generation of cards, precision, layout and pass to the answers;
``benchmarks/README.md`` says how far they hold for nets that it was not asked about.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.workspace_forms import FORMS, WorkspaceForm, choice_figures

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

_TABLE = Path(__file__).with_name("convolution_choices.npz")
_ASKED_FROM = {"float32": Generation.TURING, "float16": Generation.TURING, "bfloat16": Generation.A100}
_ENDS = -1  # in the place of a figure's number, where a branch ends


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceTree:
    """A decision tree, node after node, each followed by its branch of smaller figures.

    Args:
        figures: of each node, the number of the figure that is compared; -1 where a branch ends.
        values: the most that the figure may be in the first branch; the form's number where a branch ends.
        seconds: where the second branch begins.
    """

    figures: tuple[int, ...]
    values: tuple[float, ...]
    seconds: tuple[int, ...]

    def form_of(self, call: Convolution) -> WorkspaceForm:
        """Return the form of a convolution's workspace."""
        found, node = choice_figures(call), 0
        while self.figures[node] != _ENDS:
            node = node + 1 if found[self.figures[node]] <= self.values[node] else self.seconds[node]
        return FORMS[int(self.values[node])]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceKey:
    """What there is a tree for: what a choice depends on beside sizes."""

    generation: Generation
    is_half: bool
    channels_last: bool
    kernel: str

    @classmethod
    def of(cls, call: Convolution, generation: Generation) -> ChoiceKey:
        """Return the key of a convolution on a generation of cards."""
        is_half = call.dtype != "float32"
        return cls(generation=generation, is_half=is_half, channels_last=call.channels_last, kernel=call.kernel)

    def __str__(self) -> str:
        """As the table has it."""
        precision = "half" if self.is_half else "single"
        layout = "channels last" if self.channels_last else "channels first"
        return f"{int(self.generation)}, {precision}, {layout}, {self.kernel}"


def chosen_form(call: Convolution, generation: Generation) -> WorkspaceForm | None:
    """Return the form of workspace that cuDNN chooses; None for cards, types and settings that it was not asked about.

    Asked about were cards from Turing on, half precision, and single precision where it may be rounded to TF32.
    """
    first = _ASKED_FROM.get(call.dtype)
    if first is None or generation < first or (_is_unrounded(call) and generation > Generation.SMALL_TURING):
        return None
    return _tree(str(ChoiceKey.of(call, generation))).form_of(call)


def _is_unrounded(call: Convolution) -> bool:
    return call.dtype == "float32" and not call.with_tf32


@cache
def _tree(key: str) -> ChoiceTree:
    with np.load(_TABLE) as trees:
        nodes = trees[key]
    figures, values, seconds = (tuple(nodes[name].tolist()) for name in ("figure", "value", "second"))
    return ChoiceTree(figures=figures, values=values, seconds=seconds)
