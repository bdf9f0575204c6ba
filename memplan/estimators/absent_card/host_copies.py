"""Tensors that user code moves from the card to the host: they take no memory on the card."""

from __future__ import annotations

import functools
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from memplan.training.dense_parts import dense_parts

if TYPE_CHECKING:
    from collections.abc import Iterator


class HostCopies:
    """Tracks which of the traced tensors are on the host; all of them are CPU tensors here."""

    def __init__(self) -> None:
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._to_host: bool | None = None

    @contextmanager
    def moving(self, *, to_host: bool) -> Iterator[None]:
        """Place results of operators on the host, or on the card, while the context is open."""
        before, self._to_host = self._to_host, to_host
        try:
            yield
        finally:
            self._to_host = before

    def moved(self, tensor: torch.Tensor, *args: Any, to_host: bool, **kwargs: Any) -> torch.Tensor:
        """Return a copy on the host, or on the card; its gradient is moved the other way.

        Autograd moves a gradient to the tensor's device (``ToCopyBackward0``), which is the CPU in both cases here.

        Args:
            tensor: the tensor to copy.
            args: positional arguments of ``Tensor.to``.
            to_host: whether the copy is on the host.
            kwargs: keyword arguments of ``Tensor.to``.
        """
        with self.moving(to_host=to_host):
            copied = tensor.to(*args, **kwargs)
        if copied.requires_grad:
            back = functools.partial(self._copied, to_host=not to_host)
            copied.register_hook(back)  # type: ignore[no-untyped-call]  # untyped in torch
        return copied

    def _copied(self, tensor: torch.Tensor, *, to_host: bool) -> torch.Tensor:
        with self.moving(to_host=to_host):
            return tensor.clone()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on the host."""
        return bool(self._storages) and all(id(each) in self._storages for each in _storages(tensor))

    def keep(self, args: tuple[Any, ...], result: Any) -> bool:
        """Return whether an operator ran on the host, and track its results there if so.

        Args:
            args: its arguments; it runs on the card unless all of them are on the host.
            result: its results.
        """
        if not self._runs_on_host(args):
            return False
        for each in _tensors(result):
            for storage in _storages(each):
                self._remember(storage)
        return True

    def _remember(self, storage: torch.UntypedStorage) -> None:
        identity = id(storage)
        self._storages[identity] = weakref.ref(storage, lambda _: self._storages.pop(identity))

    def _runs_on_host(self, args: tuple[Any, ...]) -> bool:
        if self._to_host is not None:
            return self._to_host
        if not self._storages:
            return False
        given = _tensors(args)
        return bool(given) and all(self.holds(each) for each in given)


def _storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    return [part.untyped_storage() for part in dense_parts(_unwrapped(tensor))]


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor behind a wrapper of ``torch.func.vmap`` or ``grad``, which has no storage of its own."""
    functorch = torch._C._functorch  # noqa: SLF001 - public under no other name
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]
