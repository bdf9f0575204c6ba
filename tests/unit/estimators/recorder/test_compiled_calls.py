"""Compiled functions in a traced step, wherever they are called."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.recorder.compiled_calls import COMPILED_NOTE, CompiledCalls

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # of what compile imports


def test_a_compiled_function_that_is_called_is_told_of() -> None:
    doubled = torch.compile(lambda tensor: 2 * tensor)
    calls = CompiledCalls()
    with torch.compiler.set_stance("force_eager"), calls.watched():
        assert calls.notes == ()
        assert doubled(torch.ones(())) == 2
    assert calls.notes == (COMPILED_NOTE,)


def test_what_torch_compiles_or_keeps_from_being_compiled_is_not_told() -> None:
    sine = torch.compile(torch.sin)
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    parameter.grad = torch.ones(2, 2)
    calls = CompiledCalls()
    with torch.compiler.set_stance("force_eager"), calls.watched():
        torch.optim.AdamW([parameter]).step()
        sine(parameter)
    assert calls.notes == ()


def test_nothing_is_heard_after_the_step() -> None:
    doubled = torch.compile(lambda tensor: 2 * tensor)
    calls = CompiledCalls()
    with torch.compiler.set_stance("force_eager"):
        with calls.watched():
            pass
        doubled(torch.ones(()))
    assert calls.notes == ()
