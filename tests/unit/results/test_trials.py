"""What live trials found, written for a reader."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from memplan.results import OutcomeKind, ProbeResult
from tests.making import trial


def test_a_probe_is_printed_by_its_recipe_its_evidence_and_its_end() -> None:
    best = trial(8, 700, evidence="5 steps")
    result = ProbeResult(best=best, trials=(best,), reached_cap=False, remark="8 lands in the band")
    shown: list[str] = []
    shown_by = next(each for each in ProbeResult.__mro__ if vars(each).keys() & {"_repr_pretty_", "__repr__"})
    vars(shown_by)["_repr_pretty_"](result, SimpleNamespace(text=shown.append), False)  # as IPython finds it
    assert shown == [str(result)]
    assert str(result).split("\n") == ["fp32, 8 x 1 on cpu", "5 steps", "1 trial: 8 lands in the band"]


@pytest.mark.parametrize(
    ("kind", "available_samples", "failed_otherwise"),
    [
        (OutcomeKind.FITS, None, False),
        (OutcomeKind.DEVICE_OUT_OF_MEMORY, None, False),
        (OutcomeKind.USER_ERROR, 7, False),
        (OutcomeKind.USER_ERROR, None, True),
        (OutcomeKind.TIMEOUT, None, True),
    ],
)
def test_a_trial_that_failed_for_neither_memory_nor_samples_failed_otherwise(
    kind: OutcomeKind, available_samples: int | None, *, failed_otherwise: bool
) -> None:
    tried = trial(4, 300 if kind is OutcomeKind.FITS else None, kind=kind)
    outcome = replace(tried.outcome, available_samples=available_samples)
    assert replace(tried, outcome=outcome).failed_otherwise is failed_otherwise
