"""Which code loops until a condition ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from memplan.estimators.fake_tensors.open_loops import has_open_loop

if TYPE_CHECKING:
    from collections.abc import Callable


def runs_over(values: list[int]) -> int:
    total = 0
    for each in values:
        if each < 0:
            break
        if each == 1:
            continue
        total += sum(other for other in values) + len([-one for one in values])
    return total


def runs_while(value: int) -> int:
    while value > 1:
        value //= 2
    return value


def runs_until(value: int) -> int:
    for _ in range(3):
        while True:
            value -= 1
            if value < 0:
                break
    return value


async def awaits(value: Any) -> Any:
    return await value


async def runs_over_what_comes(values: Any) -> list[Any]:
    found = []
    async for each in values:
        found.append(each)  # noqa: PERF401 - it is about the loop
    return found


def hands_on(values: list[int]) -> Any:
    yield from values


@pytest.mark.parametrize(
    ("function", "is_open"),
    [
        *((each, False) for each in (runs_over, runs_over_what_comes, awaits, hands_on)),
        *((each, True) for each in (runs_while, runs_until)),
    ],
)
def test_only_conditions_make_a_loop_open(function: Callable[..., Any], *, is_open: bool) -> None:
    assert has_open_loop(function.__code__) is is_open
