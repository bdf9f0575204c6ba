"""In the child process: load cuDNN and answer about convolutions. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.children import serve
from memplan.estimators.cudnn.asking import CudnnAnswers
from memplan.estimators.cudnn.heuristics import Heuristics
from memplan.estimators.cudnn.library import CudnnError

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.estimators.cudnn.asking import CudnnQuestions


def answer(questions: CudnnQuestions, reply: Callable[[object], None]) -> None:
    """Reply with cuDNN's answers, or with why there are none."""
    try:
        heuristics = Heuristics(questions.capability)
    except (OSError, CudnnError) as error:
        reply(f"cuDNN does not answer ({error})")
        return
    found = tuple(heuristics.workspace_bytes(each) for each in questions.convolutions)
    reply(CudnnAnswers(version=heuristics.version, workspace_bytes=found))


if __name__ == "__main__":
    serve(answer)
