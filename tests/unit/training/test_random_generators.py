"""The random generators are where they were, whatever was drawn between."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from memplan.training.random_generators import RandomStates, random_states_kept, seed_generators

if TYPE_CHECKING:
    from collections.abc import Callable

DRAWS = [random.random, np.random.random, lambda: torch.rand(()).item()]


@pytest.mark.parametrize("draw", DRAWS, ids=["python", "numpy", "torch"])
def test_what_is_drawn_is_drawn_again_once_the_states_are_put_back(draw: Callable[[], float]) -> None:
    with random_states_kept():
        before = RandomStates.current()
        drawn = draw()
        assert not before.are(RandomStates.current())
        before.restore()
        assert before.are(RandomStates.current())
        assert draw() == drawn


@pytest.mark.parametrize("draw", DRAWS, ids=["python", "numpy", "torch"])
def test_seeded_generators_repeat_themselves_and_their_users_go_on_as_if_nothing_had_been(
    draw: Callable[[], float],
) -> None:
    before = RandomStates.current()
    with random_states_kept():
        seed_generators()
        first = draw()
        seed_generators()
        assert draw() == first
    assert before.are(RandomStates.current())
