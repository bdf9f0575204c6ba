"""A plan's note on batches that vary in size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.planning.writing.fragmentation import fragmentation_notes
from memplan.recipe import Recipe
from memplan.results import DrawnSteps, Estimate, OutcomeKind
from memplan.units import MIB
from tests.making import estimate


def drawing(reserved_share: float, outcome: OutcomeKind = OutcomeKind.FITS) -> Estimate:
    """An estimate whose steps on drawn batches come to hold so many times what the worst batch does."""
    plain = replace(estimate(600, Recipe(micro_batch_size=8)), peak_reserved_bytes=400 * MIB)
    drawn = DrawnSteps(
        steps=30,
        peak_reserved_bytes=int(reserved_share * 400 * MIB),
        peak_reserved_expandable_bytes=420 * MIB,
        outcome=outcome,
    )
    return replace(plain, drawn=drawn)


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (OutcomeKind.FITS, ""),
        (OutcomeKind.ALLOCATOR_RETRIES, ", and returns its cache to the driver and asks again where that is not there"),
        (OutcomeKind.DEVICE_OUT_OF_MEMORY, ", and runs out of memory where that is not there"),
    ],
)
def test_a_plan_names_what_is_reserved_in_the_end_and_the_remedy(outcome: OutcomeKind, end: str) -> None:
    grows = "samples vary in size: PyTorch comes to reserve 800.0 MiB within 30 steps on batches drawn at random"
    remedy = "; PYTORCH_ALLOC_CONF=expandable_segments:True keeps that at 420.0 MiB"
    assert fragmentation_notes(drawing(2.0, outcome)) == (grows + end + remedy,)


def test_a_twentieth_more_is_not_worth_a_word() -> None:
    assert fragmentation_notes(drawing(1.05)) == ()
    assert fragmentation_notes(replace(drawing(2.0), drawn=None)) == ()
