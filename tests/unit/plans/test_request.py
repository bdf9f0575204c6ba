"""What is wanted of a device: out of range, it is refused where it is written down."""

from __future__ import annotations

import pytest

from memplan.errors import UsageError
from memplan.plans import PlanRequest


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"budget_bytes": 0}, "budget 0 must be at least 1 byte"),
        ({"budget_bytes": -5}, "budget -5 must be at least 1 byte"),
        ({"global_batch_size": 0}, "global-batch 0 must be a whole number of at least 1"),
        ({"micro_batch_cap": 0}, "max-batch 0 must be a whole number of at least 1"),
        ({"world_size": 0}, "world-size 0 must be a whole number of at least 1"),
        ({"global_batch_size": 2.5}, "global-batch 2.5 must be a whole number of at least 1"),
        ({"micro_batch_cap": "3"}, "max-batch '3' must be a whole number of at least 1"),
        ({"max_utilisation": "0.8"}, "max-util '0.8' must be a number"),
        ({"min_utilisation": None}, "min-util None must be a number"),
    ],
)
def test_a_wish_out_of_range_is_refused_by_the_name_of_its_option(wish: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        PlanRequest(**wish)
