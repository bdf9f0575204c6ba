"""The table of cuDNN's choices, against answers of cuDNN 9.20 for layers of nets that the table was not made of.

``convolution_answers.csv`` holds six answers of each generation, type and layout, drawn at random.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from memplan.estimators.temporaries import convolution_choices
from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolution_choices import ChoiceKey, ChoiceTree, chosen_form
from memplan.estimators.temporaries.convolution_workspaces import workspace_bytes
from memplan.estimators.temporaries.convolutions import Convolution, Pass
from memplan.estimators.temporaries.workspace_forms import FORMS, choice_figures
from memplan.units import MIB
from tests.convolution_calls import call

with np.load(convolution_choices._TABLE) as trees:
    KEYS = set(trees.files)
ASKED_ABOUT = [each for each in Generation if each >= Generation.TURING]


@cache
def answers() -> list[tuple[Convolution, Generation, int]]:
    def numbers(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split("x")))

    with Path(__file__).with_name("convolution_answers.csv").open() as file:
        return [
            (
                Convolution(
                    kernel=Pass(row["pass"]),
                    input_shape=numbers(row["input"]),
                    weight_shape=numbers(row["weight"]),
                    output_shape=numbers(row["output"]),
                    dtype=row["dtype"],
                    channels_last=row["layout"] == "channels last",
                    stride=numbers(row["stride"]),
                    padding=numbers(row["padding"]),
                    dilation=numbers(row["dilation"]),
                ),
                Generation(int(row["generation"])),
                int(row["workspace_bytes"]),
            )
            for row in csv.DictReader(file)
        ]


def test_most_answers_are_told() -> None:
    pairs = [(workspace_bytes(convolution, generation), told) for convolution, generation, told in answers()]
    close = sum(abs(found - told) <= max(MIB, 0.02 * told) for found, told in pairs)
    assert len(pairs) == 192
    assert close / len(pairs) >= 0.85


@pytest.mark.parametrize("kernel", Pass)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("generation", ASKED_ABOUT)
def test_there_is_a_tree_for_every_card_type_layout_and_pass(
    generation: Generation, dtype: str, kernel: Pass, *, channels_last: bool
) -> None:
    assert chosen_form(call(kernel=kernel, dtype=dtype, channels_last=channels_last), generation) in FORMS


def test_every_branch_of_every_tree_ends_at_a_form() -> None:
    figures = len(choice_figures(call()))
    for key in KEYS:
        tree = convolution_choices._tree(key)
        ends = {int(value) for figure, value in zip(tree.figures, tree.values, strict=True) if figure < 0}
        assert ends <= set(range(len(FORMS)))
        assert max(tree.figures) < figures
        assert all(
            place < second < len(tree.figures)
            for place, (figure, second) in enumerate(zip(tree.figures, tree.seconds, strict=True))
            if figure >= 0
        )


def test_half_types_share_their_trees_and_nothing_else_does() -> None:
    keys = {
        str(ChoiceKey.of(call(dtype=dtype, kernel=kernel, channels_last=channels_last), generation))
        for dtype in ("float32", "float16", "bfloat16")
        for kernel in Pass
        for channels_last in (False, True)
        for generation in ASKED_ABOUT
    }
    assert keys == KEYS


def test_what_cudnn_was_not_asked_about_has_no_choice() -> None:
    assert chosen_form(call(), Generation.VOLTA) is None
    assert chosen_form(call(dtype="float64"), Generation.HOPPER) is None
    assert chosen_form(call(dtype="bfloat16"), Generation.TURING) is None
    assert chosen_form(call(with_tf32=False), Generation.HOPPER) is None
    turing = Generation.TURING  # where nothing is rounded anyway
    assert chosen_form(call(with_tf32=False), turing) == chosen_form(call(), turing) is not None


def test_a_tree_goes_on_with_the_next_node_up_to_a_value_and_with_its_second_branch_above() -> None:
    samples = 1  # place among the figures
    tree = ChoiceTree(figures=(samples, -1, -1), values=(8.0, 3, 5), seconds=(2, 0, 0))
    assert choice_figures(call().with_samples(9))[samples] == 9
    assert tree.form_of(call().with_samples(8)) == FORMS[3]
    assert tree.form_of(replace(call(), input_shape=(9, 64, 64, 64))) == FORMS[5]
