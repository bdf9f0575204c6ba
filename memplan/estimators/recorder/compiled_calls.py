"""Hearing whether a traced step runs code that the user compiled, wherever that is called."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from memplan.estimators.fake_tensors.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMPILED = "Compiled parts of the model or its step are traced as they run uncompiled, which usually keeps more."
_FRAMES = "torch._dynamo.eval_frame"  # imported by whoever compiles
_ASKED = "_callback_from_stance"  # what to compile a frame with: each compiled function asks before it runs


class CompiledCalls:
    """Remembers whether a compiled function was called that is not one of PyTorch's own."""

    def __init__(self) -> None:
        self._were_heard = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Listen while the context is open."""
        frames: Any = sys.modules.get(_FRAMES)
        ask: Callable[[Any], Any] | None = getattr(frames, _ASKED, None)
        if ask is None:
            yield
            return

        def asked(callback: Any) -> Any:
            compiled = sys._getframe(1).f_locals.get("fn")  # noqa: SLF001 - who asks is told in no other way
            self._were_heard |= callable(callback) and not _is_torchs(compiled)
            return ask(callback)

        with replaced(frames, _ASKED, asked):
            yield

    @property
    def notes(self) -> tuple[str, ...]:
        """Say that what is compiled was traced uncompiled, where that is so."""
        return (COMPILED,) if self._were_heard else ()


def _is_torchs(function: Any) -> bool:
    """Whether PyTorch compiled one of its own, as FlexAttention compiles its operator."""
    return getattr(function, "__module__", None) in (None, "torch") or function.__module__.startswith("torch.")
