"""In the child process: load cuDNN and answer about convolutions. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.children import serve
from memplan.estimators.cudnn.asking import CudnnAnswers
from memplan.estimators.cudnn.heuristics import Heuristics
from memplan.estimators.cudnn.library import CudnnError

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.estimators.cudnn.asking import CudnnQuestions


def answer(questions: CudnnQuestions, reply: Callable[[object], None]) -> None:
    """Reply with cuDNN's answers, and again with those about searches among them, or with why there are none."""
    try:
        heuristics = Heuristics(questions.capability, questions.sm_count)
    except (OSError, CudnnError) as error:
        reply(f"cuDNN does not answer ({error})")
        return
    found = tuple(heuristics.workspace_bytes(each) for each in questions.convolutions)
    answers = CudnnAnswers(version=heuristics.version, workspace_bytes=found)
    reply(answers)
    if questions.searched:  # these take long, and the parent may stop waiting
        reply(replace(answers, search_bytes=tuple(heuristics.search_bytes(each) for each in questions.searched)))


if __name__ == "__main__":
    serve(answer)
