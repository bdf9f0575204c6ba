"""Which generation of cards a compute capability belongs to."""

from __future__ import annotations

import pytest

from memplan.estimators.temporaries.card_generations import Generation


@pytest.mark.parametrize(
    ("capability", "generation"),
    [
        ((6, 1), Generation.BEFORE_VOLTA),
        ((7, 0), Generation.VOLTA),
        ((7, 5), Generation.TURING),
        ((8, 7), Generation.AMPERE),
        ((10, 3), Generation.BLACKWELL_OF_DATA_CENTRES),
        ((12, 1), Generation.BLACKWELL),
        ((13, 0), Generation.BLACKWELL),
    ],
)
def test_a_card_between_two_generations_is_taken_for_the_older(
    capability: tuple[int, int], generation: Generation
) -> None:
    assert Generation.of(capability) is generation
