"""What a precision changes, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.recipe import Precision, Recipe
from memplan.recommend.precision_remarks import comparison_text
from memplan.results import BreakdownBytes, Measurement
from memplan.units import MIB
from tests.making import measurement

SETTING = Recipe(micro_batch_size=4)


def run(*, samples_per_s: float = 10.0, **components_mib: int) -> Measurement:
    total = sum(components_mib.values())
    breakdown = BreakdownBytes(**{name: size * MIB for name, size in components_mib.items()}, context=100 * MIB)
    return replace(measurement(100 + total, samples_per_s=samples_per_s), breakdown=breakdown)


def said(own: Measurement, other: Measurement, precision: Precision = Precision.BF16) -> str:
    return comparison_text(own, other, precision=precision, setting=SETTING)


def test_a_saving_is_told_with_the_speed() -> None:
    text = said(run(parameters=100, activations=100, samples_per_s=15), run(parameters=100, activations=300))
    assert text == "50% less tensor memory, 1.50x the speed of fp32 at micro-batch 4"


def test_where_half_the_weights_are_copied_for_nothing_it_says_so() -> None:
    other = run(parameters=100, gradients=100, optimizer_state=200, activations=20)
    own = run(parameters=100, gradients=100, optimizer_state=200, activations=62)
    assert said(own, other) == (
        "10% more tensor memory, 1.00x the speed of fp32 at micro-batch 4; costs memory there, because weights, "
        "gradients and optimizer state stay fp32 and are 95% of the peak and activations grow by 42.00 MiB "
        "(half-precision copies of the weights)"
    )


def test_where_nothing_changes_it_says_what_stays() -> None:
    same = run(parameters=100, gradients=100, activations=100)
    assert said(same, same) == (
        "as much tensor memory, 1.00x the speed of fp32 at micro-batch 4; saves no memory there, because weights, "
        "gradients and optimizer state stay fp32 and are 67% of the peak"
    )


def test_of_a_script_whose_memory_stays_it_is_doubted_that_it_heeds_the_precision() -> None:
    assert said(run(temporaries=600), run(temporaries=600)).endswith("or the script does not heed its precision")


def test_tf32_is_not_expected_to_save_any() -> None:
    same = run(parameters=100, activations=100)
    assert "tf32 changes how fp32 is multiplied" in said(same, same, Precision.TF32)


@pytest.mark.parametrize(
    ("skipped", "scale", "remark"),
    [
        (0, 65536.0, "the loss scale stays at 65536"),
        (1, 32768.0, "the loss scale settles from 65536 to 32768 with 1 step skipped"),
        (
            17,
            0.5,
            "the loss scale collapses from 65536 to 0.5 with 17 steps skipped: gradients overflow whatever it is",
        ),
    ],
)
def test_the_loss_scale_is_told(skipped: int, scale: float, remark: str) -> None:
    half = replace(run(activations=100), loss_scale=scale, first_loss_scale=65536.0, skipped_steps=skipped)
    assert said(half, run(activations=300), Precision.FP16).split("; ")[-1] == remark
