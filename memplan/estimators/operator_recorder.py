"""The dispatch mode that sees every operator of a step and tells the ledger what it made."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memplan.estimators.step_trace import Category

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.estimators.module_paths import ModulePaths
    from memplan.estimators.storages import StorageLedger


class OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves dispatch modes untyped
    """Records the storages that each operator returns; what a kernel takes and gives back inside is not seen."""

    def __init__(self, ledger: StorageLedger, paths: ModulePaths) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves dispatch modes untyped
        self._ledger = ledger
        self._paths = paths
        self._muted = False

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Record nothing while the context is open."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator and record the new storages among its results."""
        result = func(*args, **(kwargs or {}))
        if self._muted:
            return result
        for value in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._ledger.see(value, Category.TEMPORARIES, module=self._paths.current, operator=str(func))
        return result
