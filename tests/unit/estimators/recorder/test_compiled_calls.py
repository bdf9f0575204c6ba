"""Compiled functions in a traced step, wherever they are called."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from memplan.estimators.recorder import compiled_calls
from memplan.estimators.recorder.compiled_calls import (
    GRAPHS_NOTE,
    UNCOMPILED_NOTE,
    CompiledCalls,
    NotCapturableError,
    compile_copies,
    redirect_compiled_calls,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # of what compile imports


@pytest.fixture(autouse=True)
def _redirected() -> Iterator[None]:
    from torch._dynamo.eval_frame import OptimizeContext  # noqa: PLC0415 - 80 MiB of modules

    own = vars(OptimizeContext).get("__call__")
    redirect_compiled_calls()
    with torch.compiler.set_stance("force_eager"):
        yield
    if own is None:
        del OptimizeContext.__call__
    else:
        OptimizeContext.__call__ = own  # type: ignore[method-assign]  # as it was


class _Graphs:
    """Stands in for what runs functions as graphs: adds one to their result, or cannot capture them."""

    is_capturing = False
    notes = ("of graphs",)

    def __init__(self, *, captures: bool = True) -> None:
        self._captures = captures
        self.calls = 0
        self.settings: Mapping[str, Any] = {}
        self.is_forgotten = False

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        settings: Mapping[str, Any],
    ) -> Any:
        self.calls += 1
        self.settings = settings
        if not self._captures:
            raise NotCapturableError("it reads a value")
        return function(*args, **kwargs) + 1

    def forget(self) -> None:
        self.is_forgotten = True


def _calls(graphs: Any = None) -> CompiledCalls:
    return CompiledCalls(lambda: graphs)


def test_a_compiled_function_that_is_called_is_told_of() -> None:
    doubled = torch.compile(lambda tensor: 2 * tensor)
    calls = _calls()
    with calls.watched():
        assert calls.notes == ()
        assert doubled(torch.ones(())) == 2
    assert calls.notes == (UNCOMPILED_NOTE,)


def test_graphs_are_forgotten_once_the_step_is_no_longer_watched() -> None:
    doubled = torch.compile(lambda tensor: 2 * tensor)
    graphs = _Graphs()
    with _calls(graphs).watched():
        doubled(torch.ones(()))
        assert not graphs.is_forgotten
    assert graphs.is_forgotten


def test_compiled_functions_and_modules_run_as_graphs() -> None:
    doubled = torch.compile(lambda tensor: 2 * tensor)
    identity = torch.compile(nn.Identity())
    stack = torch.compile(nn.Sequential(nn.Identity()))
    calls = _calls(_Graphs())
    with calls.watched():
        assert doubled(torch.ones(())) == 3
        assert identity(torch.ones(())) == 2
        assert stack(torch.ones(())) == 2
    assert calls.notes == (GRAPHS_NOTE, *_Graphs.notes)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({"mode": "reduce-overhead"}, {"triton.cudagraphs": True}),
        (
            {"options": {"triton.cudagraphs": True, "shape_padding": False}},
            {"triton.cudagraphs": True, "shape_padding": False},
        ),
    ],
)
def test_graphs_are_made_with_the_settings_that_the_function_was_compiled_with(
    options: dict[str, Any], settings: dict[str, Any]
) -> None:
    doubled = torch.compile(lambda tensor: 2 * tensor, **options)
    graphs = _Graphs()
    with _calls(graphs).watched():
        doubled(torch.ones(()))
    assert graphs.settings == settings


def test_a_function_that_cannot_be_captured_runs_as_it_is_and_is_not_tried_again() -> None:
    doubled = torch.compile(lambda tensor: 2 * tensor)
    graphs = _Graphs(captures=False)
    calls = _calls(graphs)
    with calls.watched():
        assert [doubled(torch.ones(())).item() for _ in range(2)] == [2, 2]
    assert graphs.calls == 1
    assert calls.notes == (UNCOMPILED_NOTE, *_Graphs.notes)


def test_what_another_compiler_is_given_runs_as_it_is() -> None:
    doubled = torch.compile(lambda tensor: 2 * tensor, backend="aot_eager")
    calls = _calls(_Graphs())
    with calls.watched():
        assert doubled(torch.ones(())) == 2
    assert calls.notes == (UNCOMPILED_NOTE,)


def test_copies_of_a_module_that_compiles_itself_are_compiled() -> None:
    model = nn.Sequential(nn.Identity(), nn.Identity())
    model[1].compile()
    made = copy.deepcopy(model)
    compile_copies(made, model)
    with _calls(_Graphs()).watched():
        assert made(torch.ones(())) == 2


def test_what_torch_keeps_from_being_compiled_is_not_told() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    parameter.grad = torch.ones(2, 2)
    calls = _calls()
    with calls.watched():
        torch.optim.AdamW([parameter]).step()
    assert calls.notes == ()


def test_calls_that_are_redirected_stay_as_they_are() -> None:
    from torch._dynamo.eval_frame import OptimizeContext  # noqa: PLC0415 - 80 MiB of modules

    once = OptimizeContext.__call__
    redirect_compiled_calls()
    assert OptimizeContext.__call__ is once


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_what_torch_compiles_of_its_own_is_not_told(is_wrapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_with = torch.compile

    @functools.wraps(compile_with)
    def wrapped(*args: Any, **kwargs: Any) -> Any:  # as Lightning does, once it is imported
        return compile_with(*args, **kwargs)

    if is_wrapped:
        monkeypatch.setattr(torch, "compile", wrapped)
    code = "import torch\nsine = torch.compile(torch.sin)"
    in_torch: dict[str, Any] = {"__name__": "torch.nn.waves"}
    exec(code, in_torch)  # noqa: S102 - the module that compiles it decides
    calls = _calls()
    with calls.watched():
        in_torch["sine"](torch.ones(()))
    assert calls.notes == ()


@pytest.mark.parametrize("function", [torch.sin, nn.functional.logsigmoid, nn.functional.normalize])
def test_functions_of_torch_that_the_user_compiles_run_as_graphs(function: Callable[..., Any]) -> None:
    compiled, calls = torch.compile(function), _calls(_Graphs())
    with calls.watched():
        assert torch.equal(compiled(torch.ones(1, 1)), function(torch.ones(1, 1)) + 1)
    assert calls.notes == (GRAPHS_NOTE, *_Graphs.notes)


def test_a_step_of_torchs_optimizers_that_the_user_compiles_is_told_to_run_as_it_is() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    parameter.grad = torch.ones(2, 2)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    step, calls = torch.compile(optimizer.step), _calls(_Graphs())
    with calls.watched():
        step()
    assert parameter.sum() == 0
    assert calls.notes == (UNCOMPILED_NOTE,)


def test_nothing_is_heard_after_the_step() -> None:
    doubled = torch.compile(lambda tensor: 2 * tensor)
    calls = _calls()
    with calls.watched():
        pass
    doubled(torch.ones(()))
    assert calls.notes == ()


def test_modules_that_pytorch_calls_for_the_user_are_the_users() -> None:
    def inline() -> Any:
        return module

    module = nn.Identity()
    inline.__module__ = "torch._dynamo.external_utils"
    assert not compiled_calls._is_of_torch(inline)
