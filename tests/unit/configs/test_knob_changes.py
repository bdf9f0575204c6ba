"""How the values of a config follow the batch."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from memplan.configs.knob_changes import scaled_counts


@pytest.mark.parametrize(
    ("original", "scaled"),
    [
        (1000, 500),
        (1e4, 5000.0),
        ([600, 8e2], [300, 400.0]),
        (1, 1),
        (0, 0),
        (-1, -1),
        (1.0, 1.0),
        (0.1, 0.1),
        (2.5, 2.5),
        (True, True),
        (float("inf"), float("inf")),
        (None, None),
    ],
)
def test_counts_are_halved_and_shares_are_not(original: Any, scaled: Any) -> None:
    found = scaled_counts(original, Fraction(1, 2), like=original)
    assert found == scaled
    assert type(found) is type(scaled)
