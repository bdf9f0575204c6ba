"""How a trace tells of a child that never answered."""

from __future__ import annotations

import signal

import pytest

from memplan.children import ChildEnding
from memplan.devices.cards import find_card
from memplan.errors import TraceError
from memplan.estimators import tracing
from memplan.recipe import Recipe
from tests.making import SOURCE


@pytest.mark.parametrize(
    ("return_code", "problem"),
    [
        (1, "the tracing process ended with status 1 and no answer; its last line: ImportError: no libcudart.so.13"),
        (-signal.SIGSEGV, "the tracing process was ended by SIGSEGV"),
    ],
)
def test_a_child_without_an_answer_is_told_by_how_it_ended(
    return_code: int, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = ChildEnding(
        messages=(),
        return_code=return_code,
        stop_reason=None,
        log_tail="Traceback (most recent call last):\nImportError: no libcudart.so.13\n",
        duration_s=1.0,
    )
    monkeypatch.setattr(tracing, "run_child", lambda *_, **__: ending)
    with pytest.raises(TraceError) as raised:
        tracing.trace_step(SOURCE, Recipe(micro_batch_size=2), find_card("t4"))
    assert raised.value.problem == problem
