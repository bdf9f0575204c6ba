"""What live trials found, written for a reader."""

from __future__ import annotations

from types import SimpleNamespace

from memplan.results import ProbeResult
from tests.making import trial


def test_a_probe_is_printed_by_its_recipe_its_evidence_and_its_end() -> None:
    best = trial(8, 700, evidence="5 steps")
    result = ProbeResult(best=best, trials=(best,), reached_cap=False, remark="8 lands in the band")
    shown: list[str] = []
    result._repr_pretty_(SimpleNamespace(text=shown.append), False)
    assert shown == [str(result)]
    assert str(result).split("\n") == ["fp32, 8 x 1 on cpu", "5 steps", "1 trial: 8 lands in the band"]
