"""What was found, written for a reader."""

from __future__ import annotations

from memplan.recipe import Recipe
from tests.making import estimate


def test_an_estimate_is_printed_by_its_peaks() -> None:
    assert str(estimate(600, Recipe(8))).split("\n") == [
        "net on cpu, fp32, 8 x 1",
        "peak allocated: 500.0 MiB, backward",
        "peak reserved: 500.0 MiB",
        "peak process: 600.0 MiB, 60% of 1000.0 MiB",
    ]
