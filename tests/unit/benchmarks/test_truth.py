"""The matrix of recorded cases, and what the recorder keeps of the allocator's events."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from memplan.units import GIB, MIB
from tests.fake_cuda import FakeCuda, FakeMemory
from tests.fake_driver import FakeCard
from tests.unit.benchmarks.conftest import BENCHMARKS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType


@pytest.fixture
def truth(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("truth")


@pytest.fixture
def cases(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("truth_cases")


def measured(truth: ModuleType, case: Any, *, is_alone: bool = True) -> tuple[dict[str, Any], dict[str, Any] | None]:
    return truth.measure(case, truth.made_in_memory(case), is_alone=is_alone)


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
    assert case.key != cases.Case(model="unet", micro_batch_size=8, replicas=8).key
    compiled = cases.Case(model="unet", micro_batch_size=8, compiled=True)
    assert len({case.key, compiled.key, dataclasses.replace(compiled, cuda_graphs=True).key}) == 3


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
    left = truth.missing(tmp_path, tmp_path / "new", None)
    assert first not in left
    assert left[0] == second


def test_what_failed_before_is_tried_again_behind_all_others(truth: ModuleType, tmp_path: Path) -> None:
    first, second, *_ = truth.matrix()
    truth.append(tmp_path / "failures-1.jsonl", {"key": first.key})
    left = truth.missing(tmp_path / "known", tmp_path, None)
    assert (left[0], left[-1]) == (second, first)


def test_a_line_that_was_cut_off_is_recorded_again(truth: ModuleType, tmp_path: Path) -> None:
    first, second, *_ = truth.matrix()
    truth.append(tmp_path / "records-1.jsonl", {"key": first.key})
    with (tmp_path / "records-1.jsonl").open("a") as file:
        file.write('{"key": "' + second.key + '", "case": {"mod')
    assert truth.missing(tmp_path, tmp_path / "new", None)[0] == second


def test_cases_that_fail_are_told_and_do_not_stop_the_others(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "truth.py", "--out", str(tmp_path), "--known", str(tmp_path), "--only", "unet-fp32"],
        cwd=BENCHMARKS,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    (told,) = tmp_path.glob("failures*.jsonl")
    count = len(told.read_text().splitlines())
    assert count > 1
    assert ended.stdout.count("FAILED with status 1") == count
    assert not list(tmp_path.glob("records*.jsonl"))


def test_a_case_whose_recorder_was_killed_leaves_the_card_alone(truth: ModuleType) -> None:
    waits, gives = os.pipe()
    os.close(gives)
    with pytest.raises(SystemExit, match="before this case had its turn"):
        truth.wait_for_turn(waits)
    os.close(waits)


@pytest.fixture
def tiny(truth: ModuleType, cases: ModuleType, install: Any, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A case named tiny of 512x512 weights (1 MiB), run on the CPU beside a made-up card."""
    parts = importlib.import_module("truth_models").Trainable(
        model=lambda: torch.nn.Linear(512, 512, bias=False),
        batch=lambda size: torch.ones(size, 512),
        loss=lambda model, batch: model(batch).square().mean(),
    )
    install(FakeCard())
    monkeypatch.setitem(cases.MODELS, "tiny", cases.Entry(make=lambda: parts, sizes=(1, 2)))
    monkeypatch.setattr(truth, "DEVICE", "cpu")
    monkeypatch.setattr(truth, "provenance", dict)
    monkeypatch.setattr(truth, "SETTLING_S", 0)
    return FakeCuda([FakeMemory(allocated_peak=5, reserved_peak=7)]).install(monkeypatch)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16", "bf16-true"])
def test_a_case_is_recorded_with_every_phase_of_every_step(
    truth: ModuleType, cases: ModuleType, tiny: FakeCuda, precision: str
) -> None:
    case = cases.Case(model="tiny", micro_batch_size=2, precision=precision, accumulation_steps=2)
    record, history = measured(truth, case)
    assert json.loads(json.dumps(record))["case"] == dataclasses.asdict(case)
    assert (record["ending"], history) == ("fits", None)
    assert record["parameter_bytes"] == record["gradient_bytes"] == (MIB // 2 if precision == "bf16-true" else MIB)
    phases = [(row["step"], row["phase"]) for row in record["phases"]]
    assert phases[:6] == [(-1, "setup"), *[(0, "forward"), (0, "backward")] * 2, (0, "optimizer step")]
    assert len(phases) == 1 + 5 * 5 + 1
    assert len(record["step_times_s"]) == 3


@pytest.fixture
def own_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give PyTorch and transformers back what stubs answer in their place."""
    owners = (
        (torch, "all"),
        (torch.Tensor, "all"),
        (torch.amp.GradScaler, "_unscale_grads_"),
        (sys.modules.get("transformers.masking_utils"), "fast_all"),
    )
    for owner, name in owners:
        if hasattr(owner, name):
            monkeypatch.setattr(owner, name, getattr(owner, name))


@pytest.mark.usefixtures("own_answers")
@pytest.mark.parametrize("hides", [True, False])
def test_on_stubs_a_case_says_whether_its_masks_hide_anything(
    truth: ModuleType, cases: ModuleType, tiny: FakeCuda, hides: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        answers.extend(bool(ask(batch == 0)) for ask in (torch.all, torch.Tensor.all))  # of ones
        return model(batch).mean()

    parts = dataclasses.replace(cases.MODELS["tiny"].make(), loss=loss, hides_tokens=hides)
    monkeypatch.setitem(cases.MODELS, "tiny", cases.Entry(make=lambda: parts, sizes=(1, 2)))
    case = cases.Case(model="tiny", micro_batch_size=2)
    measured(truth, case)
    monkeypatch.setenv("STUB_NAME", "stubs for Made-up 24 GB")
    measured(truth, case)
    assert answers == [False] * 10 + [not hides] * 10


@pytest.mark.usefixtures("own_answers")
def test_on_stubs_an_optimizer_steps_whatever_the_gradients_are(
    truth: ModuleType, cases: ModuleType, tiny: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = dataclasses.replace(cases.MODELS["tiny"].make(), loss=lambda model, batch: model(batch).sum() / 0)
    monkeypatch.setitem(cases.MODELS, "tiny", cases.Entry(make=lambda: parts, sizes=(1, 2)))
    steps = []
    monkeypatch.setattr(torch.optim.AdamW, "step", steps.append)
    case = cases.Case(model="tiny", micro_batch_size=2, precision="fp16")
    measured(truth, case)
    assert not steps
    monkeypatch.setenv("STUB_NAME", "stubs for Made-up 24 GB")
    measured(truth, case)
    assert len(steps) == 5


def test_a_step_that_does_not_accumulate_goes_backward_from_the_loss_itself(
    truth: ModuleType, cases: ModuleType, tiny: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        losses.append(model(batch).mean())
        losses[-1].retain_grad()
        return losses[-1]

    parts = dataclasses.replace(cases.MODELS["tiny"].make(), loss=loss)
    monkeypatch.setitem(cases.MODELS, "tiny", cases.Entry(make=lambda: parts, sizes=(1, 2)))
    for count in (1, 4):
        measured(truth, cases.Case(model="tiny", micro_batch_size=2, accumulation_steps=count))
    assert [float(each.grad) for each in losses] == [1.0] * 5 + [0.25] * 20


def test_bfloat16_weights_are_converted_before_they_move(
    truth: ModuleType, cases: ModuleType, tiny: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = []
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *args, **kwargs: moves.extend(args) or self)
    case = cases.Case(model="tiny", micro_batch_size=2, precision="bf16-true")
    truth.brought_to_card(case, truth.made_in_memory(case).model)
    assert moves == [torch.bfloat16, "cpu"]


def test_a_case_beside_others_has_no_figure_of_the_drivers_and_no_time(
    truth: ModuleType, cases: ModuleType, tiny: FakeCuda
) -> None:
    case = cases.Case(model="tiny", micro_batch_size=2)
    alone, beside = (measured(truth, case, is_alone=each)[0] for each in (True, False))
    driver = {"used_before_bytes", "context_at_start_bytes", "process_after_last_step_bytes", "step_times_s"}
    assert alone.keys() - beside.keys() == driver


def test_a_capped_case_that_runs_out_of_memory_is_a_record_too(
    truth: ModuleType, cases: ModuleType, tiny: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(truth, "brought_to_card", run_out)
    record, _ = measured(truth, cases.Case(model="tiny", micro_batch_size=2, cap_bytes=4 * GIB))
    assert record["ending"] == "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert tiny.cards[0].share == 0.5
    assert [row["phase"] for row in record["phases"]] == ["end"]
    assert record["peak_reserved_bytes"] == 7
