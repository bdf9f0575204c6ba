# ruff: noqa: S311 - nothing is kept secret
"""Lone random numbers of PyTorch, Python and NumPy, which are at one place of their range in a trace."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from memplan.estimators.fake_tensors.fake_detection import hiding_fakes
from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.fake_tensors.known_values import run_with_known_values
from memplan.estimators.fake_tensors.random_draws import HIGH, LOW, MIDDLE, RandomDraws

ATEN = torch.ops.aten


def drawn_by_torch(draws: RandomDraws, operator: Any, *args: Any) -> float:
    fakes = TraceFakeMode(draws=draws)
    with fakes:
        fake = run_with_known_values(operator, args, {}, fakes=fakes)
        assert not draws.were_read
        return float(run_with_known_values(ATEN._local_scalar_dense.default, (fake,), {}, fakes=fakes))


@pytest.mark.parametrize(
    ("operator", "args", "found"),
    [
        (ATEN.rand.default, ([1],), {LOW: 0.001, MIDDLE: 0.5, HIGH: 0.999}),
        (ATEN.randn.default, ([],), {LOW: -3.09, MIDDLE: 0.0, HIGH: 3.09}),
        (ATEN.randint.default, (10, [1]), {LOW: 0, MIDDLE: 5, HIGH: 9}),
        (ATEN.randint.low, (2, 4, []), {LOW: 2, MIDDLE: 3, HIGH: 3}),
    ],
)
def test_a_lone_number_of_torch_lies_low_in_the_middle_or_high_in_its_range(
    operator: Any, args: tuple[Any, ...], found: dict[float, float]
) -> None:
    draws = {fraction: RandomDraws(fraction) for fraction in found}
    answers = {fraction: drawn_by_torch(draws[fraction], operator, *args) for fraction in found}
    assert answers == pytest.approx(found, abs=0.001)
    assert all(each.were_read for each in draws.values())


def test_where_all_is_computed_a_lone_number_takes_its_place_and_others_stay() -> None:
    draws = RandomDraws(LOW)
    several = torch.rand(2)
    assert draws.replace_scalar(several, ATEN.rand.default, ([2],)) is several
    assert not draws.were_read
    assert float(draws.replace_scalar(torch.rand(1), ATEN.rand.default, ([1],))) == pytest.approx(0.001)
    assert draws.were_read


def test_a_branch_taken_by_a_lone_number_is_told_and_one_that_is_only_computed_with_is_not() -> None:
    draws = RandomDraws(HIGH)
    fakes = TraceFakeMode(draws=draws)
    with fakes:
        number = run_with_known_values(ATEN.rand.default, ([1],), {}, fakes=fakes)
        is_high = run_with_known_values(ATEN.gt.Scalar, (number, 0.7), {}, fakes=fakes)
    assert not draws.were_read
    with hiding_fakes():
        assert bool(is_high)
    assert draws.were_read


@pytest.mark.parametrize(
    ("source", "name", "bounds"),
    [
        (random, "random", ()),
        (random, "uniform", (0, 1)),
        (np.random, "rand", ()),
        (np.random, "uniform", ()),
        (np.random, "random", ()),
    ],
)
def test_a_lone_number_of_python_or_numpy_takes_its_place_as_well(
    source: Any, name: str, bounds: tuple[int, ...]
) -> None:
    draws = RandomDraws(HIGH)
    with draws.intercepted():
        assert getattr(source, name)(*bounds) == HIGH
    assert draws.were_read
    assert "test_random_draws.py" in draws.notes[0]


def test_other_draws_are_the_same_in_every_run_and_told() -> None:
    def drawn() -> tuple[object, ...]:
        draws = RandomDraws()
        with draws.intercepted():
            found = random.choice(range(1000)), np.random.rand(2, 3).tolist(), torch.randperm(100).tolist()
        assert "further random numbers of Python or NumPy" in draws.notes[0]
        return found

    assert drawn() == drawn()


def test_a_step_that_draws_nothing_is_told_nothing_of() -> None:
    draws = RandomDraws()
    with draws.intercepted():
        pass
    assert draws.notes == ()
    assert not draws.were_read


def test_generators_are_left_as_they_were() -> None:
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tobytes()
    functions = random.random, random.uniform, np.random.rand
    with RandomDraws().intercepted():
        random.shuffle([1, 2, 3])
        np.random.shuffle([1, 2, 3])
        torch.rand(3)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert np.random.get_state()[1].tobytes() == before[2]
    assert functions == (random.random, random.uniform, np.random.rand)


def test_a_loop_that_draws_until_a_number_is_of_another_kind_ends() -> None:
    with RandomDraws(LOW).intercepted():
        while random.random() < 0.5:
            pass
