"""What the process of a trial loads beyond what the user's own run has."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from memplan.errors import DeviceError
from memplan.probe import cuda_readings
from memplan.probe.launcher import run_trial
from memplan.probe.trials import trial_environment
from tests.making import CARD, CPU, REQUEST


def test_a_trials_process_loads_neither_the_journal_nor_the_search() -> None:
    program = (
        "import sys, memplan.probe.worker, memplan.probe.trial_run\n"
        "loaded = {'sqlite3', 'rich', 'typer', 'memplan.probe.search'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(loaded)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert ended.stderr.strip() == ""


def test_the_template_is_made_of_every_torch_although_not_all_have_the_same_modules() -> None:
    program = (
        "import sys; sys.modules['torch.profiler._cupti_monitor'] = None  # torch 2.13 is the first that has it\n"
        "from memplan.probe.worker import _preload; _preload()\n"
        "assert {'torch._dynamo', 'memplan.probe.trial_run'} <= set(sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_trial_sees_a_card_only_where_it_runs_on_one() -> None:
    assert trial_environment(CPU)["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in trial_environment(CARD)
    assert trial_environment(CARD)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_card_that_pytorch_cannot_use_ends_the_run_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceError, match=r"PyTorch \d+.* cannot use cuda:0: .+; install a PyTorch that fits"):
        run_trial(replace(REQUEST, device=CARD))


def test_a_card_without_room_for_a_context_is_full_and_not_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out() -> None:
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported")

    monkeypatch.setattr(torch.cuda, "init", run_out)
    with pytest.raises(RuntimeError, match="out of memory"):
        cuda_readings.initialised_card(0)
