"""The path of the running module, tracked by forward hooks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.nn.modules import module as hooks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


class ModulePaths:
    """Tracks the module whose forward is running, by its name in ``named_modules``."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._stack = [""]

    @property
    def current(self) -> str:
        """Path of the innermost running module; empty outside all of them."""
        return self._stack[-1]

    @property
    def is_inside(self) -> bool:
        """Whether any module's forward is running."""
        return len(self._stack) > 1

    @contextmanager
    def tracked(self) -> Iterator[None]:
        """Track every module's forward while the context is open."""
        entering = hooks.register_module_forward_pre_hook(self._enter)
        leaving = hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            entering.remove()
            leaving.remove()

    @contextmanager
    def inside(self, part: str) -> Iterator[None]:
        """Count code that runs while the context is open to a part of the running module, by its path from there."""
        self._stack.append(".".join(each for each in (self.current, part) if each))
        try:
            yield
        finally:
            self._stack.pop()

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        self._stack.append(self._names.get(module, self._stack[-1]))

    def _leave(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        self._stack.pop()
