"""What was found, written for a reader."""

from __future__ import annotations

from dataclasses import replace

from memplan.recipe import Recipe
from memplan.units import MIB
from tests.making import estimate


def test_an_estimate_is_printed_by_its_peaks() -> None:
    assert str(estimate(600, Recipe(8))).split("\n") == [
        "net on cpu, fp32, 8 x 1",
        "peak allocated: 500.0 MiB, backward",
        "peak reserved: 500.0 MiB",
        "peak process: 600.0 MiB, 60% of 1000.0 MiB",
    ]


def test_a_search_that_takes_more_than_later_steps_is_printed_too() -> None:
    found = replace(estimate(600, Recipe(8)), peak_search_bytes=700 * MIB)
    assert "peak reserved for cuDNN's search: 700.0 MiB, first step" in str(found).split("\n")
    assert "search" not in str(replace(found, peak_search_bytes=500 * MIB))
