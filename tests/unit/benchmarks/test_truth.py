"""The matrix of recorded cases, and what the recorder keeps of the allocator's events."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(name="truth")
def recorder(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("truth")


@pytest.fixture(name="cases")
def case_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("truth_cases")


def test_the_matrix_is_broad_and_no_case_has_two_names(cases: ModuleType) -> None:
    matrix = cases.matrix()
    assert len({case.key for case in matrix}) == len(matrix) >= 150
    assert len({case.model for case in matrix}) >= 30
    assert {case.precision for case in matrix} == {"fp32", "tf32", "fp16", "bf16", "bf16-true"}
    assert {case.optimizer for case in matrix} == set(cases.OPTIMIZERS)
    assert sum(case.keeps_history for case in matrix) >= 12
    assert {case.cap_bytes // cases.GIB for case in matrix if case.cap_bytes} == {8, 16, 24, 40, 80}


def test_a_name_changes_with_the_case_and_with_nothing_else(cases: ModuleType) -> None:
    case = cases.Case(model="unet", micro_batch_size=8)
    assert case.key == cases.Case(model="unet", micro_batch_size=8).key
    assert case.key != cases.Case(model="unet", micro_batch_size=8, cudnn_benchmark=True).key


def test_events_are_kept_with_addresses_numbered_in_the_order_they_come(truth: ModuleType) -> None:
    trace = [
        {"action": "segment_alloc", "addr": 0x7F00, "size": 2097152, "stream": 0},
        {"action": "alloc", "addr": 0x7F00, "size": 512, "stream": 0},
        {"action": "snapshot", "size": 0},
        {"action": "alloc", "addr": 0x7F80, "size": 100, "stream": 0},
        {"action": "free_completed", "addr": 0x7F00, "size": 512, "stream": 0},
    ]
    named = [(truth.ACTIONS[action], *rest) for action, *rest in truth.condensed(trace)]
    assert named == [
        ("segment_alloc", 0, 2097152, 0),
        ("alloc", 0, 512, 0),
        ("alloc", 1, 100, 0),
        ("free_completed", 0, 512, 0),
    ]


def test_what_a_record_holds_is_not_recorded_again(truth: ModuleType, tmp_path: Path) -> None:
    first, second, *_ = truth.matrix()
    truth.append(tmp_path / "records-1.jsonl", {"key": first.key})
    left = list(truth.missing(tmp_path, tmp_path / "new", None))
    assert first not in left
    assert left[0] == second
