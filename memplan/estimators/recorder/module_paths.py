"""The path of the running module, tracked by forward hooks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.nn.modules import module as hooks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from torch.utils.hooks import RemovableHandle


class ModulePaths:
    """Tracks the module whose forward is running, by its name in ``named_modules``."""

    def __init__(self, model: nn.Module) -> None:
        self._names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
        self._names_by_identity = {id(module): name for module, name in self._names.items()}
        self._stack = [""]
        self._hooks: list[RemovableHandle] = []

    @property
    def current(self) -> str:
        """Path of the innermost running module; empty outside all of them."""
        return self._stack[-1]

    @property
    def is_inside(self) -> bool:
        """Whether any module's forward is running."""
        return len(self._stack) > 1

    def path_of(self, identity: int) -> str:
        """Return the path of a module by its ``id``; that of the running module where it is not the model's."""
        return self._names_by_identity.get(identity, self.current)

    @contextmanager
    def tracked(self) -> Iterator[None]:
        """Track every module's forward while the context is open."""
        self._register_hooks()
        try:
            yield
        finally:
            self._remove_hooks()

    @contextmanager
    def untracked(self) -> Iterator[None]:
        """Let no hook of this run while the context is open, in which compilers follow what modules do."""
        was_tracked = bool(self._hooks)
        self._remove_hooks()
        try:
            yield
        finally:
            if was_tracked:
                self._register_hooks()

    def _register_hooks(self) -> None:
        self._hooks += (
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        )

    def _remove_hooks(self) -> None:
        while self._hooks:
            self._hooks.pop(0).remove()

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
