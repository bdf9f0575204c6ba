"""What Inductor learns of a card."""

from __future__ import annotations

import pytest

from memplan.estimators.lowering.inductor_card import inductor_card
from memplan.units import MIB


@pytest.mark.parametrize(
    ("capability", "expected_mib"),
    [
        pytest.param((6, 0), 6, id="older than all that are known"),
        pytest.param((7, 5), 6, id="T4"),
        pytest.param((8, 0), 40, id="A100"),
        pytest.param((9, 0), 50, id="H100"),
        pytest.param((12, 1), 96, id="newer than all that are known"),
    ],
)
def test_the_cache_is_that_of_the_nearest_capability(capability: tuple[int, int], expected_mib: int) -> None:
    assert inductor_card(capability, None).cache_bytes == expected_mib * MIB
