"""Detecting calls of functions that the user compiled with ``torch.compile``."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from memplan.estimators.fake_tensors.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMPILED_NOTE = "compiled parts of the model or its step are traced as they run uncompiled, which usually keeps more"
_EVAL_FRAME = "torch._dynamo.eval_frame"  # imported once something is compiled
_HOOK = "_callback_from_stance"  # called by every compiled function before it runs


class CompiledCalls:
    """Whether a compiled function was called that is not one of PyTorch's own."""

    def __init__(self) -> None:
        self._found = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch for calls while the context is open."""
        module: Any = sys.modules.get(_EVAL_FRAME)
        hook: Callable[[Any], Any] | None = getattr(module, _HOOK, None)
        if hook is None:
            yield
            return

        def watching(callback: Any) -> Any:
            compiled = sys._getframe(1).f_locals.get("fn")  # noqa: SLF001 - the hook is not given the function
            self._found |= callable(callback) and not _is_of_torch(compiled)
            return hook(callback)

        with replaced(module, _HOOK, watching):
            yield

    @property
    def notes(self) -> tuple[str, ...]:
        """Say that compiled code was traced uncompiled, if any was called."""
        return (COMPILED_NOTE,) if self._found else ()


def _is_of_torch(function: Any) -> bool:
    """Whether the function is PyTorch's own: FlexAttention compiles its operator."""
    return getattr(function, "__module__", None) in (None, "torch") or function.__module__.startswith("torch.")
