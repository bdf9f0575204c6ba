"""When a running trial is stopped, and what is said of it."""

from __future__ import annotations

import pytest

from memplan.probe.limits import over_resident_limit, over_step_limit
from memplan.probe.trials import StepLimit
from memplan.recipe import Precision
from memplan.results import OutcomeKind
from memplan.units import GIB


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (StepLimit(limit_s=10.0), "step 3 still running after 12 s (limit 10 s)"),
        (StepLimit(limit_s=10.0, usual_s=0.5), "step 3 still running after 12 s (usually: 0.5 s)"),
        (
            StepLimit(limit_s=10.0, usual_s=0.5, usual_precision=Precision.BF16),
            "step 3 still running after 12 s (bf16: 0.5 s)",
        ),
    ],
)
def test_a_step_is_stopped_beyond_its_limit_and_told_beside_what_the_limit_follows_from(
    limit: StepLimit, said: str
) -> None:
    assert over_step_limit(limit, step=3, running_s=10.0) is None
    verdict = over_step_limit(limit, step=3, running_s=12.0)
    assert verdict is not None
    assert (verdict.kind, verdict.evidence) == (OutcomeKind.TIMEOUT, said)


def test_a_step_without_a_limit_may_take_any_time() -> None:
    assert over_step_limit(None, step=3, running_s=1e6) is None


def test_main_memory_counts_up_to_and_with_its_limit() -> None:
    assert over_resident_limit(2 * GIB, 2 * GIB) is None
    verdict = over_resident_limit(3 * GIB, 2 * GIB)
    assert verdict is not None
    assert verdict.kind is OutcomeKind.HOST_OUT_OF_MEMORY
    assert verdict.evidence == "stopped at 3.00 GiB resident, above its 2.00 GiB"
