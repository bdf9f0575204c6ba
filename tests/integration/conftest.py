"""Small real projects, and the command line run on them as a user would."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from memplan.children import Template
from memplan.cli import main
from memplan.estimators import trace_template
from memplan.probe.launcher import trial_template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

# One sample is 8192 x 32 fp32 numbers: 1 MiB. Each layer keeps one such tensor for the backward pass.
NETWORK = """
import torch
from torch import nn

import memplan


def make_workload(config):
    def model():
        return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

    def batch(micro_batch_size):
        generator = torch.Generator().manual_seed(1)
        return torch.randn(micro_batch_size, 8192, 32, generator=generator)

    def loss(model, images):
        return model(images).square().mean()

    def optimizer(parameters):
        return torch.optim.AdamW(parameters, lr=config.optimizer.lr)

    return memplan.Workload(model=model, batch=batch, loss=loss, optimizer=optimizer, name="tiny")
"""

CONFIG = """\
# what we train
data:
  batch_size: 2   # fits everywhere
  num_workers: 0
training:
  use_amp: false
optimizer: {lr: 1.0e-3}
"""

MAPS = (
    "--map", "micro_batch_size=data.batch_size", "--map", "precision=training.use_amp",
    "--map", "learning_rate=optimizer.lr",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended: its exit status and what it printed."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def memplan(
    *arguments: str | Path, cwd: Path, timeout_s: float = 300, environment: Mapping[str, str] | None = None
) -> Ended:
    ended = subprocess.run(
        [sys.executable, "-m", "memplan", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "COLUMNS": "120", **(environment or {})},
    )
    return Ended(status=ended.returncode, out=ended.stdout, err=ended.stderr)


class _KeptTemplate(Template):
    """A template that several commands use one after another."""

    def __exit__(self, *_: object) -> None:
        """Stay for the next."""


@pytest.fixture(scope="session")
def templates() -> Iterator[tuple[Template, Template]]:
    """A template of traces and one of trials, which load torch once for all plans that are made in this process."""
    found = _KeptTemplate(trace_template().module), _KeptTemplate(trial_template().module)
    yield found
    for each in found:
        each.close()


@pytest.fixture
def kept_templates(templates: tuple[Template, Template], monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that are made in this process have the templates in common."""
    tracing, trying = templates
    monkeypatch.setattr("memplan.planner.trace_template", lambda: tracing)
    monkeypatch.setattr("memplan.planning.estimating.trace_template", lambda: tracing)
    monkeypatch.setattr("memplan.planner.trial_template", lambda _: trying)


@pytest.fixture
def command(kept_templates: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """What runs a command line in this process: as :func:`memplan` does, but in a fraction of its time."""

    def run(*arguments: str | Path, cwd: Path) -> Ended:
        out, err = io.StringIO(), io.StringIO()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        with monkeypatch.context() as patched, redirect_stdout(out), redirect_stderr(err):
            patched.chdir(cwd)
            patched.setattr(sys, "argv", ["memplan", *map(str, arguments)])
            patched.setenv("COLUMNS", "120")
            try:
                main()
                status: object = 0
            except SystemExit as ended:
                status = ended.code or 0
        for number, handler in handlers.items():
            signal.signal(number, handler)
        assert isinstance(status, int)
        return Ended(status=status, out=out.getvalue(), err=err.getvalue())

    return run


def make_project(folder: Path) -> Path:
    """Write a plain YAML config and a workload function beside it."""
    (folder / "net.py").write_text(NETWORK)
    (folder / "config.yaml").write_text(CONFIG)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a plain YAML config and a workload function beside it."""
    return make_project(tmp_path)
