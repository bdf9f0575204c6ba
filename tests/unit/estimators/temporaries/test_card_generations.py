"""Which generation of cards a compute capability belongs to."""

from __future__ import annotations

import pytest

from memplan.estimators.temporaries.card_generations import Generation


@pytest.mark.parametrize(
    ("capability", "sm_count", "generation"),
    [
        ((6, 1), 100, Generation.BEFORE_VOLTA),
        ((7, 0), 100, Generation.VOLTA),
        ((7, 5), 100, Generation.TURING),
        ((7, 5), 60, Generation.TURING),
        ((7, 5), None, Generation.TURING),
        ((7, 5), 58, Generation.SMALL_TURING),
        ((8, 0), 58, Generation.A100),
        ((8, 7), 100, Generation.AMPERE),
        ((10, 3), 100, Generation.BLACKWELL_OF_DATA_CENTRES),
        ((12, 1), 100, Generation.BLACKWELL),
        ((13, 0), 100, Generation.BLACKWELL),
    ],
)
def test_a_card_between_two_generations_is_taken_for_the_older(
    capability: tuple[int, int], sm_count: int | None, generation: Generation
) -> None:
    assert Generation.of(capability, sm_count) is generation


def test_a_description_of_a_generation_is_of_that_generation() -> None:
    assert all(Generation.of(*each.described) is each for each in Generation if each)
