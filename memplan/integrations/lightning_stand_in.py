"""What stands in for Lightning's Trainer while a module runs single steps: what modules ask it for, and its flags."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOME_STEPS = 1000  # of a training whose length is not given; only the schedule's shape follows from it
# What a trainer reports to its module in the first step of a training by one process.
_TOLD_IN_THE_FIRST_STEP: dict[str, Any] = {
    **dict.fromkeys(("training", "is_global_zero"), True),
    **dict.fromkeys(("barebones", "validating", "testing", "predicting", "sanity_checking"), False),
    **dict.fromkeys(("global_rank", "local_rank", "node_rank", "current_epoch", "global_step"), 0),
    **dict.fromkeys(("world_size", "num_devices", "num_nodes"), 1),
    **dict.fromkeys(("logger", "datamodule"), None),
}


def is_standalone() -> bool:
    """Whether the script uses the package ``pytorch_lightning``, and not ``lightning``, which has the same inside."""
    return "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules


def trainer_stand_in(settings: dict[str, Any]) -> SimpleNamespace:
    """Return what modules ask their trainer for."""
    max_steps = settings.get("max_steps")
    steps = max_steps if isinstance(max_steps, int) and max_steps > 0 else _SOME_STEPS
    return SimpleNamespace(
        **_TOLD_IN_THE_FIRST_STEP,
        state=_fitting(),
        max_epochs=settings.get("max_epochs") or 1,
        max_steps=steps,
        num_training_batches=steps,
        estimated_stepping_batches=steps,
        accumulate_grad_batches=settings.get("accumulate_grad_batches") or 1,
        gradient_clip_val=settings.get("gradient_clip_val"),
        precision=settings.get("precision") or "32-true",
        loggers=[],
        optimizers=[],
        callbacks=[],
        callback_metrics={},
    )


def _fitting() -> Any:
    """Return the state of a Trainer that trains, of the package that the script uses."""
    package = "pytorch_lightning" if is_standalone() else "lightning.pytorch"
    states = importlib.import_module(f"{package}.trainer.states")
    return states.TrainerState(
        status=states.TrainerStatus.RUNNING, fn=states.TrainerFn.FITTING, stage=states.RunningStage.TRAINING
    )


@contextmanager
def validating(trainer: SimpleNamespace) -> Iterator[None]:
    """Let a stand-in say that it validates while the context is open."""
    training = trainer.state.stage
    vars(trainer).update(training=False, validating=True)
    trainer.state.stage = type(training).VALIDATING
    try:
        yield
    finally:
        vars(trainer).update(training=True, validating=False)
        trainer.state.stage = training


def set_torch_flags(*, deterministic: bool | str | None, benchmark: bool | None) -> None:
    """Set what a Trainer sets in torch when it is built (``_set_torch_flags`` in its accelerator_connector.py)."""
    if benchmark is not None or deterministic:
        torch.backends.cudnn.benchmark = bool(benchmark)
    if deterministic is not None:
        torch.use_deterministic_algorithms(bool(deterministic), warn_only=deterministic == "warn")
    if deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
