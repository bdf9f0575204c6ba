"""Calls of functions that the user compiled with ``torch.compile``."""

from __future__ import annotations

import functools
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from memplan.children.compiled_modules import INDUCTOR, compile_as, unwrapped_backend
from memplan.errors import MemplanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType, FrameType

UNCOMPILED_NOTE = "compiled parts of the model or its step are traced as they run uncompiled, which usually keeps more"
GRAPHS_NOTE = (
    "compiled parts are counted by the code that Inductor writes for their graphs, CUDA graphs with the pool of memory "
    "that they keep; which products are padded is presumed"
)
REFUSED_NOTE = (
    "PyTorch ends with an error where gradients that a CUDA graph made are added up over micro-batches: accumulate "
    "without CUDA graphs, as torch.compile does by default, or make the gradients before the first backward pass"
)
_FLEX_ATTENTION = "torch.nn.attention.flex_attention"
_COMPILING = ("torch._dynamo", "torch.compiler")  # what stands between a call of ``torch.compile`` and its effect
_watching: list[CompiledCalls] = []  # those of the step that is traced
_inductor_is_given_any = threading.Event()  # set once Inductor was given a function


class NotCapturableError(MemplanError):
    """A function cannot be turned into graphs, and runs uncompiled."""


class GraphRunner(Protocol):
    """Runs functions as the graphs that a compiler makes of them."""

    is_capturing: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """Say which of them did not run as graphs."""

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        settings: Mapping[str, Any],
    ) -> Any:
        """Return what a function returns that was compiled with settings of Inductor.

        Raises:
            NotCapturableError: it cannot be turned into graphs.
        """

    def forget(self) -> None:
        """Forget all graphs, which hold tensors."""


class CompiledCalls:
    """Runs the functions that the user compiled, while a step is watched.

    Args:
        make_graphs: called once there are any; returns what runs them as Inductor's graphs, or None to run them as
            they are.
    """

    def __init__(self, make_graphs: Callable[[], GraphRunner | None]) -> None:
        self._make_graphs = make_graphs
        self._graphs: GraphRunner | None = None
        self._refused: set[Any] = set()
        self._notes: dict[str, None] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Take calls over while the context is open."""
        _watching.append(self)
        try:
            yield
        finally:
            _watching.pop()
            if self._graphs is not None:
                self._graphs.forget()

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        settings: Mapping[str, Any],
    ) -> Any:
        """Return what a function returns that was compiled with settings of Inductor."""
        self._graphs = self._graphs or self._make_graphs()
        if self._graphs is None:
            return self._run_uncompiled(function, args, kwargs)
        if self._graphs.is_capturing:
            return function(*args, **kwargs)
        if function not in self._refused:
            try:
                results = self._graphs.call(function, args, kwargs, settings)
            except NotCapturableError:
                self._refused.add(function)
            else:
                self._notes[GRAPHS_NOTE] = None
                return results
        return self._run_uncompiled(function, args, kwargs)

    def note_uncompiled(self) -> None:
        """Say that a compiled function runs uncompiled."""
        self._notes[UNCOMPILED_NOTE] = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Say how compiled functions were traced, if any was called."""
        return tuple(dict.fromkeys((*self._notes, *(() if self._graphs is None else self._graphs.notes))))

    def _run_uncompiled(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.note_uncompiled()
        return function(*args, **kwargs)


def redirect_compiled_calls() -> None:
    """Let calls of what is compiled from now on be taken over while a step is watched, for the rest of this process."""
    from torch._dynamo.eval_frame import OptimizeContext, innermost_fn  # noqa: PLC0415 - 80 MiB of modules

    compile_with: Callable[..., Any] = OptimizeContext.__call__
    if compile_with.__module__ == __name__:  # they are already
        return

    def compiling(context: OptimizeContext, function: Any) -> Any:
        made = compile_with(context, function)
        inner = innermost_fn(function)
        if isinstance(made, nn.Module | type) or (_is_of_torch(inner) and _is_compiled_by_torch(inner)):
            return made  # a module compiles its own call
        backend = unwrapped_backend(context.callback)
        is_inductors = getattr(backend, "compiler_name", None) == INDUCTOR and not _steps(inner)
        if is_inductors:
            _inductor_is_given_any.set()

        @functools.wraps(made)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _watching:
                return made(*args, **kwargs)
            if is_inductors:
                return _watching[-1].call(inner, args, kwargs, backend.config)
            _watching[-1].note_uncompiled()
            return inner(*args, **kwargs)

        return call

    OptimizeContext.__call__ = compiling  # type: ignore[method-assign, assignment]  # all ways to compile pass it


@contextmanager
def unwatched() -> Iterator[None]:
    """Let what is compiled run as PyTorch compiles it while the context is open."""
    watching = _watching[:]
    _watching.clear()
    try:
        yield
    finally:
        _watching[:] = watching


def is_inductor_given_any() -> bool:
    """Whether user code compiled any function with Inductor since its calls are redirected; it need not be called."""
    return _inductor_is_given_any.is_set()


def compile_copies(model: nn.Module, original: nn.Module) -> None:
    """Compile those modules of a copy that are compiled in the original by ``Module.compile``, which no copy is."""
    for made, source in zip(model.modules(), original.modules(), strict=True):
        compile_as(made, source)


def _is_of_torch(function: Any) -> bool:
    """Whether the function is PyTorch's own."""
    cells = (each.cell_contents for each in getattr(function, "__closure__", None) or ())
    if any(isinstance(each, nn.Module) for each in (getattr(function, "__self__", None), *cells)):
        return False  # PyTorch calls a module for the user
    return getattr(function, "__module__", None) in (None, "torch") or function.__module__.startswith("torch.")


def _is_compiled_by_torch(function: Any) -> bool:
    """Whether PyTorch compiles its own function, or traces it as if: FlexAttention does, whoever calls for it."""
    if getattr(function, "__module__", None) == _FLEX_ATTENTION:
        return True
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - as documented, there is no other way
    wrappers = tuple(_codes_of(torch.compile))  # Lightning replaces it by one of its own
    while frame is not None and (frame.f_code in wrappers or _module_of(frame).startswith(_COMPILING)):
        frame = frame.f_back
    return frame is not None and _module_of(frame).startswith("torch.")


def _codes_of(function: Any) -> Iterator[CodeType]:
    """Yield the code of a function and of those that it wraps."""
    while function is not None:
        yield function.__code__
        function = getattr(function, "__wrapped__", None)


def _module_of(frame: FrameType) -> str:
    name = str(frame.f_globals.get("__name__", ""))
    return "torch._dynamo" if name == "torch" else name  # where ``torch.compile`` is


def _steps(function: Any) -> bool:
    """Whether the function is a method of an optimizer, which makes its state when it is first called."""
    return (getattr(function, "__module__", None) or "").startswith("torch.optim.")
