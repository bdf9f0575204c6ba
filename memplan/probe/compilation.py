"""Whether ``torch.compile`` has compiled, and telling the parent of a trial when, which comes on top of its step.

Imports torch; child processes only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch._dynamo.callback import on_compile_end, on_compile_start
from torch._dynamo.utils import counters

from memplan.probe.trials import TrialPhase, TrialProgress

if TYPE_CHECKING:
    from collections.abc import Callable


def stop_compiling() -> None:
    """Let what ``torch.compile`` was given run as it is written from now on in this process."""
    torch.compiler.set_stance("force_eager")


def has_compiled() -> bool:
    """Whether ``torch.compile`` has compiled any code in this process, or tried to."""
    # frames are not counted where the whole graph was asked for, as attention with a score function does
    return bool(counters["frames"]["total"] or counters["stats"]["unique_graphs"])


class CompilationReports:
    """Passes a trial's messages on, with one when a compilation starts, and the last progress again when it ends.

    Args:
        reply: sends a message to the parent.
    """

    def __init__(self, reply: Callable[[object], None]) -> None:
        self._reply = reply
        self._progress: TrialProgress | None = None
        on_compile_start(lambda *_: self._tell(TrialPhase.COMPILING))
        on_compile_end(lambda *_: self._tell(None))

    def __call__(self, message: object) -> None:
        """Send a message."""
        if isinstance(message, TrialProgress):
            self._progress = message
        self._reply(message)

    def _tell(self, phase: TrialPhase | None) -> None:
        if self._progress is not None:
            self._reply(self._progress if phase is None else replace(self._progress, phase=phase))
