"""A trial of a training command: what ends it, and what it reads of a card, the driver's figures made up."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memplan.devices.card_readings import BytesReading
from memplan.probe.commands import cards as command_cards
from memplan.probe.commands import trial as command_trial
from memplan.probe.commands.cards import allocator_limit_bytes, visible_cards
from memplan.probe.launcher import run_trial
from memplan.probe.trials import StepLimit
from memplan.recipe import Precision, Recipe
from memplan.results import Outcome, OutcomeKind
from memplan.units import GIB, MIB
from tests.cpu_budgets import beyond_cpu_build_bytes
from tests.making import CARD, CPU, REQUEST, command, context

ON_CARD = replace(
    REQUEST,
    device=replace(CARD, context=context(300)),
    source=command("t {micro_batch_size}"),
    budget_bytes=8 * GIB,
)
MEASURED_CARD = {
    "index": 0,
    "allocated_peak_bytes": 600 * MIB,
    "reserved_peak_bytes": 700 * MIB,
    "reserved_bytes": 640 * MIB,
    "used_bytes": 1200 * MIB,
    "alloc_retries": 0,
}


def ran(script: str, folder: Path, **asked: Any) -> Outcome:
    (folder / "train.py").write_text(script)
    return ran_by("train.py", folder, **asked)


def ran_by(arguments: str, folder: Path, **asked: Any) -> Outcome:
    source = command(f"{sys.executable} {arguments} {{micro_batch_size}}", folder)
    return run_trial(replace(REQUEST, source=source, **asked))


def test_a_script_that_hangs_before_its_first_step_is_stopped_and_shows_where_it_is(tmp_path: Path) -> None:
    outcome = ran(
        "import time\ndef wait_for_a_lock_of_nobody():\n    time.sleep(600)\nwait_for_a_lock_of_nobody()\n",
        tmp_path,
        build_limit_s=2,
    )
    assert outcome.kind is OutcomeKind.NEVER_STEPPED
    assert "none of its Python processes imported torch.optim" in outcome.evidence
    assert "wait_for_a_lock_of_nobody" in outcome.log_tail


def test_a_script_that_is_cut_off_from_the_environment_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n")
    source = command(f"env -i {sys.executable} train.py {{micro_batch_size}}", tmp_path)
    outcome = run_trial(replace(REQUEST, source=source))
    assert outcome.kind is OutcomeKind.NEVER_STEPPED
    assert "no Python process in it could be observed" in outcome.evidence
    assert outcome.duration_s < 60


TWO_OUT_OF_STEP = """
import subprocess, sys, time
from pathlib import Path
import torch
is_first = len(sys.argv) == 2
first_steps, second_is_built = Path("first steps"), Path("second is built")
def wait_for(path):
    while not path.exists():
        time.sleep(0.1)
if is_first:
    second = subprocess.Popen([sys.executable, __file__, sys.argv[1], "second"])
else:
    held = torch.ones(400 << 18)  # 400 MiB before it is a replica that trains
    wait_for(first_steps)
    time.sleep(2)  # in which it is seen
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(30):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if is_first and step == 1:
        first_steps.touch()
        wait_for(second_is_built)
    if not is_first:
        second_is_built.touch()
    time.sleep(1.0 if is_first else 0.1)
"""


def test_a_replica_that_is_built_late_counts_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_OUT_OF_STEP)
    source = command(f"{sys.executable} train.py {{micro_batch_size}}", tmp_path, steps=8)
    recipe = Recipe(micro_batch_size=2, world_size=2)
    outcome = run_trial(replace(REQUEST, source=source, recipe=recipe, budget_bytes=2 * GIB))
    measured = outcome.measurement
    assert measured is not None
    taken_bytes = measured.peak_process_bytes - 2 * beyond_cpu_build_bytes()
    assert taken_bytes > 600 * MIB  # two processes with PyTorch, and what one holds
    assert taken_bytes < 1000 * MIB  # which would be there twice


def test_a_script_that_takes_more_than_the_budget_is_stopped(tmp_path: Path) -> None:
    outcome = ran(
        "held = bytearray(b'x') * (600 << 20)\nimport time\ntime.sleep(600)\n", tmp_path, budget_bytes=GIB // 2
    )
    assert outcome.kind is OutcomeKind.HOST_OUT_OF_MEMORY
    assert outcome.evidence.endswith("above its 512.0 MiB")
    assert outcome.measurement is None


LOOP = """
import time
import torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
def train(factor, pause_s=0.0):
    optimizer.zero_grad()
    scaler.scale(net(torch.ones(2, 4)).sum() * factor).backward()
    scaler.step(optimizer)
    scaler.update()
    time.sleep(pause_s)
"""


LOADED = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
size = int(sys.argv[1])
def loader(samples, drop_last):
    return DataLoader(TensorDataset(torch.ones(samples, 4)), batch_size=size, drop_last=drop_last)
validation = loader(3, False)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(9):
    if not epoch % 3:
        next(iter(validation), None)
    for (batch,) in loader({samples}, {drop_last}):
        loss = net(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss)
"""


def test_speed_is_that_of_the_samples_that_the_data_have(tmp_path: Path) -> None:
    script = LOADED.replace("{samples}", "10").replace("{drop_last}", "False")
    outcome = ran(script, tmp_path, recipe=Recipe(micro_batch_size=16))
    measured = outcome.measurement
    assert measured is not None
    assert (outcome.kind, outcome.available_samples) == (OutcomeKind.FITS, 10)
    assert measured.samples_per_s == pytest.approx(10 / measured.step_times_s[0])
    full = ran(script, tmp_path, recipe=Recipe(micro_batch_size=10))
    assert (full.kind, full.available_samples) == (OutcomeKind.FITS, None)


def test_workers_leave_nothing_in_the_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = LOADED.replace("{samples}, {drop_last})", "100, False)").replace("=size", "=size, num_workers=1")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        assert ran(script, tmp_path, recipe=Recipe(micro_batch_size=10)).kind is OutcomeKind.FITS
        assert [each.name for each in Path(folder).iterdir() if each.name.startswith("pymp-")] == []


def test_a_failure_for_want_of_a_full_batch_is_told_as_such(tmp_path: Path) -> None:
    script = LOADED.replace("{samples}", "10").replace("{drop_last}", "True")
    outcome = ran(script, tmp_path, recipe=Recipe(micro_batch_size=16))
    assert (outcome.kind, outcome.available_samples) == (OutcomeKind.USER_ERROR, 10)
    said = "the data loader has 10 samples, too few for a batch of 16: NameError: name 'loss' is not defined"
    assert outcome.evidence.startswith(said)


SLOW_PASSES_FIRST = """
import time
import torch
net = torch.nn.Linear(4, 1)
for _ in range(5):
    net(torch.ones(2, 4)).sum().backward()
    time.sleep(0.5)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_passes_that_stood_for_steps_are_forgotten_once_an_optimizer_is_made(tmp_path: Path) -> None:
    measured = ran(SLOW_PASSES_FIRST, tmp_path).measurement
    assert measured is not None
    assert (measured.steps_taken, measured.optimizer_name, measured.learning_rate) == (3, "SGD", 0.1)
    assert len(measured.step_times_s) == 1  # of three, two of which are warm-up


def test_a_script_that_is_slow_to_start_is_given_time_and_a_slow_step_is_not(tmp_path: Path) -> None:
    outcome = ran(LOOP + "time.sleep(2)\nfor _ in range(9):\n    train(1.0, 600)\n", tmp_path, time_limit_s=1.0)
    assert outcome.kind is OutcomeKind.TIMEOUT
    assert re.fullmatch(r"still running after \d+ s \(limit 1 s\): 1 step", outcome.evidence)
    assert "in train" in outcome.log_tail


def test_a_script_whose_steps_are_slow_is_given_up_in_the_second(tmp_path: Path) -> None:
    limit = StepLimit(limit_s=60.0, usual_s=0.1, usual_precision=Precision.FP32, slow_s=0.5)
    outcome = ran(LOOP + "for _ in range(9):\n    train(1.0, 1.0)\n", tmp_path, step_limit=limit)
    assert outcome.kind is OutcomeKind.TIMEOUT
    said = r"given up in step \d after [1-9] s: the one before took \d\.\d s \(fp32: 0\.1 s\)"
    assert re.fullmatch(said, outcome.evidence)


def test_an_evaluation_between_steps_ends_no_trial(tmp_path: Path) -> None:
    limit = StepLimit(limit_s=None, usual_s=0.01, slow_s=0.5)
    outcome = ran(LOOP + "for number in range(9):\n    train(1.0, 1.5 * (number == 1))\n", tmp_path, step_limit=limit)
    assert outcome.kind is OutcomeKind.FITS


def test_a_script_whose_every_step_is_skipped_is_ended_as_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    outcome = ran(LOOP + "while True:\n    train(float('nan'), 0.01)\n", tmp_path)
    assert outcome.kind is OutcomeKind.NON_FINITE_LOSS
    assert outcome.evidence.startswith("the gradient scaler skipped ")


def test_a_loss_that_is_no_number_is_told_with_its_step(tmp_path: Path) -> None:
    loss = "(net(torch.ones(2, 4)).sum() * (1.0 if number < 2 else float('nan')))"
    outcome = ran(LOOP + f"for number in range(9):\n    {loss}.backward()\n    optimizer.step()\n", tmp_path)
    assert outcome.kind is OutcomeKind.NON_FINITE_LOSS
    assert outcome.evidence == "the loss of step 3 was not finite"


def test_a_script_that_trains_on_the_cpu_although_a_card_is_tried_is_told_so(tmp_path: Path) -> None:
    outcome = ran(LOOP + "for _ in range(9):\n    train(1.0)\n", tmp_path, device=ON_CARD.device, budget_bytes=8 * GIB)
    assert (outcome.kind, outcome.measurement) == (OutcomeKind.USER_ERROR, None)
    assert outcome.evidence == "the steps ran on the CPU and not on card: does the script's PyTorch see the card?"


def test_a_python_that_does_not_take_the_hook_is_told_as_the_cause(tmp_path: Path) -> None:
    outcome = ran_by("-I -c pass", tmp_path)
    assert outcome.kind is OutcomeKind.NEVER_STEPPED
    assert "is PYTHONPATH kept" in outcome.evidence


def test_a_python_that_does_not_take_the_hook_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_trial, "_UNOBSERVED_LIMIT_S", 1.0)
    outcome = ran_by("-I -c 'import time; time.sleep(600)'", tmp_path)
    assert outcome.kind is OutcomeKind.NEVER_STEPPED
    assert "is PYTHONPATH kept" in outcome.evidence


FINISHED = {"event": "finished", "pid": 7, "is_finite": True, "loss_scale": None}


def step_of(number: int, card: dict[str, int] | None) -> dict[str, Any]:
    figures = {
        "passes": 1,
        "is_loss_finite": True,
        "skipped": 0,
        "optimizers": 1,
        "resident_peak_bytes": 300 * MIB,
        "resident_file_bytes": 1,
    }
    return {"event": "step", "pid": 7, "step": number, "duration_s": 0.5, **figures, "card": card}


def write_events(folder: Path, *steps: dict[str, Any]) -> Path:
    """Make what a trial has in its folder, with what the hook of process 7 has written into it."""
    (folder / "leave").mkdir()
    built = {"event": "built", "pid": 7, "resident_bytes": 1, "parameters_bytes": 1}
    events = folder / "events"
    events.write_text("".join(f"{json.dumps(line)}\n" for line in (built, *steps)))
    return events


@pytest.mark.parametrize(("has_left", "counted_bytes"), [(False, 150 * MIB), (True, 0)])
def test_what_a_process_shared_with_its_loaders_workers_is_not_theirs_once_it_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_left: bool, counted_bytes: int
) -> None:
    events = write_events(tmp_path, step_of(1, None), step_of(2, None))

    def resident_parts(_tree: object, _pid: int, _whole: set[int]) -> tuple[int, int]:
        if has_left:
            with events.open("a") as file:
                file.write(f"{json.dumps(FINISHED)}\n")
        return 0, 150 * MIB

    monkeypatch.setattr(command_trial.ProcessTree, "resident_parts", resident_parts)
    watch = command_trial._Watch(REQUEST, command("t {micro_batch_size}"), tmp_path, None)
    assert watch.find_reason_to_stop(7, 1.0) is None
    measured = watch.measure()
    assert measured is not None
    assert measured.peak_process_bytes == 300 * MIB + counted_bytes


@pytest.fixture
def card_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A watch over a card of which others hold 200 MiB, and process 7 so much as it is told."""

    def make(process_bytes: int | None, card_bytes: tuple[int, int]) -> tuple[command_trial._Watch, Path]:
        used = iter(card_bytes)
        last = SimpleNamespace(value=card_bytes[-1])
        monkeypatch.setattr(
            command_cards, "device_used_bytes", lambda index: BytesReading(read_bytes=next(used, last.value))
        )
        monkeypatch.setattr(
            command_cards, "process_used_bytes", lambda index, pid: BytesReading(read_bytes=process_bytes)
        )
        write_events(tmp_path, *(step_of(number, MEASURED_CARD) for number in (1, 2, 3)), FINISHED)
        watch = command_trial._Watch(ON_CARD, ON_CARD.source, tmp_path, None)
        watch.hear()
        return watch, tmp_path / "leave" / "7"

    return make


def test_on_a_card_the_driver_is_asked_before_the_process_may_leave(card_watch) -> None:
    watch, leave = card_watch(1000 * MIB, (200 * MIB, 1200 * MIB))
    assert leave.exists()
    measured = watch.measure()
    assert measured.breakdown.context == (1000 - 640) * MIB
    assert measured.peak_process_bytes == (700 + 360) * MIB
    assert measured.peak_device_bytes == (700 + 360 + 200) * MIB


def test_where_the_driver_does_not_list_processes_the_growth_of_the_card_stands_for_them(card_watch) -> None:
    watch, _ = card_watch(None, (200 * MIB, 1200 * MIB))
    assert watch.measure().breakdown.context == (1200 - 200 - 640) * MIB


def test_the_allocators_limit_leaves_room_for_context_and_neighbours() -> None:
    request = replace(ON_CARD, budget_bytes=4 * GIB + 300 * MIB + 200 * MIB)
    assert allocator_limit_bytes(request, 200 * MIB) == 4 * GIB
    assert allocator_limit_bytes(request, 8 * GIB) == 0


@pytest.mark.parametrize(
    ("first", "replicas", "setting", "shown"),
    [
        (0, 2, None, None),
        (1, 1, None, "1"),
        (1, 2, None, "1,2"),
        (1, 2, "GPU-a,GPU-b,GPU-c,GPU-d", "GPU-b,GPU-c"),
        (1, 4, "GPU-a,GPU-b", "GPU-b"),
    ],
)
def test_replicas_are_shown_a_card_each_from_the_chosen_one_on(
    first: int, replicas: int, setting: str | None, shown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    recipe = Recipe(micro_batch_size=4, world_size=replicas)
    request = replace(ON_CARD, recipe=recipe, device=replace(CARD, live_index=first))
    assert visible_cards(request).get("CUDA_VISIBLE_DEVICES") == shown
    assert visible_cards(replace(request, device=CPU)) == {"CUDA_VISIBLE_DEVICES": ""}
