"""What the backward pass of layer norm sums through."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.estimators.lowering.layer_norm_temporaries import layer_norm_rules
from memplan.units import MIB
from tests.making import sizes
from tests.tensors import meta

HOPPER = (9, 0)
BACKWARD = "aten.native_layer_norm_backward"


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        ((True, True, True), (4 * MIB, 4 * MIB, (8 * MIB,), (8 * MIB,))),
        ((True, True, False), (4 * MIB, (8 * MIB,))),
        ((True, False, False), ()),
    ],
)
def test_each_gradient_of_very_many_rows_is_summed_in_parts(wanted: tuple[bool, ...], taken: tuple[Any, ...]) -> None:
    """On stubs of an H200, PyTorch 2.13 takes the same for 150,988 rows of 512 numbers."""
    values, kept, weight = meta(150_988, 512), meta(150_988, 1), meta(512)
    rule = layer_norm_rules(HOPPER, 132)[BACKWARD]
    found = rule((values, values, [512], kept, kept, weight, weight, list(wanted)), None)
    assert sizes(found.after_results) == taken


def test_the_gradient_of_weights_of_root_mean_squares_is_summed_likewise() -> None:
    values, kept, weight = meta(150_988, 512), meta(150_988, 1), meta(512)
    rule = layer_norm_rules(HOPPER, 132)["aten._fused_rms_norm_backward"]
    found = rule((values, values, [512], kept, weight, [True, True]), None)
    assert sizes(found.after_results) == (4 * MIB, (8 * MIB,))


def test_nothing_is_summed_where_no_parameter_is_or_on_a_card_that_is_not_known() -> None:
    values, kept = meta(150_988, 512), meta(150_988, 1)
    found = layer_norm_rules(HOPPER, 132)[BACKWARD]((values, values, [512], kept, kept, None, None, [True] * 3), None)
    assert found.after_results == ()
    assert layer_norm_rules(HOPPER, None) == {}
