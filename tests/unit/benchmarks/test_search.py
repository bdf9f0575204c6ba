"""How the search benchmark sums up what the finders found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


@pytest.fixture
def search(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("search")


def parts_of(search: ModuleType, ours: int) -> dict[str, Any]:
    """Micro-batch b takes b tenths of the budget; 11 is too large; the larger the faster, but for 8."""
    readings = [{"size": size, "fits": size < 11, "utilisation": size / 10} for size in range(1, 12)]
    others = {tool: {"size": 10, "trials": 5, "wall_s": 20.0} for tool in search.TOOLS}
    return {
        search.OURS: {"size": ours, "trials": 2, "wall_s": 8.0},
        **others,
        "accelerate": {"size": 12, "trials": 20, "wall_s": 60.0},
        search.EXHAUSTIVE: {"trials": 11, "wall_s": 90.0, "readings": readings},
        search.SPEEDS: {"6": 90.0, "7": 100.0, "8": 80.0, "10": 120.0},
    }


def test_the_best_is_the_fastest_inside_the_band_and_not_the_fastest_of_all(search: ModuleType) -> None:
    assert search.best_inside(parts_of(search, 6)) == 7


def test_an_answer_is_shown_with_its_effort_its_fullness_and_its_share_of_the_best_speed(search: ModuleType) -> None:
    rows = search.table({"net": parts_of(search, 6)}).splitlines()
    cells = [cell.strip() for cell in rows[2].strip("|").split("|")]
    assert cells == [
        "net",
        "6 in 2 trials, 8 s; 60% full, 90% of the speed",
        "10 in 5 trials, 20 s; 100% full, 120% of the speed",
        "10 in 5 trials, 20 s; 100% full, 120% of the speed",
        "12 in 20 trials, 60 s; **over the budget**",
        "7 in 11 trials, 90 s; 70% full, 100% of the speed",
    ]
    assert rows[-1].strip("|").split("|")[1:] == [" 0 of 1 ", " 0 of 1 ", " 0 of 1 ", " 1 of 1 ", " 0 of 1 "]


def test_a_model_that_has_not_been_finished_is_not_in_the_table(search: ModuleType) -> None:
    unfinished = {name: part for name, part in parts_of(search, 6).items() if name != search.SPEEDS}
    assert "net" not in search.table({"net": unfinished})
