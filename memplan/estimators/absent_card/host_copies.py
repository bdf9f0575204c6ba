"""Tensors on the host, which take no memory on the card: what user code moves there, and what a model's move leaves.

``nn.Module.to`` moves parameters and buffers only. Tensors in plain attributes stay on the host unless the code moves
them, too, which it must have done where they are computed with together with tensors of the card.
"""

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
        self._presumed: set[int] = set()  # those of them that the code may have moved unseen
        self._made_on_card: dict[int, weakref.ref[torch.UntypedStorage]] = {}
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
        for storage in _storages_in(result):
            self._remember(storage, self._storages)
        return True

    def note_on_card(self, made: Any) -> None:
        """Remember that code asked for a tensor on the card, such as one that builds a model."""
        for storage in _storages_in(made):
            self._remember(storage, self._made_on_card)

    def is_made_on_card(self, tensor: torch.Tensor) -> bool:
        """Whether code asked for the tensor on the card."""
        return all(id(each) in self._made_on_card for each in _storages(tensor))

    def leave(self, tensor: torch.Tensor) -> None:
        """Leave a tensor on the host until it is moved to the card."""
        for storage in _storages(tensor):
            self._remember(storage, self._storages)

    def leaves(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is known to be on the host, rather than taken to be."""
        return self.holds(tensor) and not self._is_presumed(tensor)

    def presume(self, tensor: torch.Tensor) -> None:
        """Take a tensor to be on the host until it is used together with tensors of the card."""
        for storage in _storages(tensor):
            self._remember(storage, self._storages)
            self._presumed.add(id(storage))

    def found_on_card(self, args: tuple[Any, ...]) -> list[torch.Tensor]:
        """Return the tensors, so far taken to be on the host, that an operator on the card reads.

        Numbers and indices may stay on the host.
        """
        if not self._presumed:
            return []
        given = _tensors(args)
        if all(self.holds(each) for each in given):
            return []
        found = [each for each in given if each.dim() and each.is_floating_point() and self._is_presumed(each)]
        for storage in _storages_in(found):
            self._presumed.discard(id(storage))
            self._storages.pop(id(storage), None)
        return found

    def _is_presumed(self, tensor: torch.Tensor) -> bool:
        return any(id(each) in self._presumed for each in _storages(tensor))

    def _remember(self, storage: torch.UntypedStorage, among: dict[int, weakref.ref[torch.UntypedStorage]]) -> None:
        identity = id(storage)
        among[identity] = weakref.ref(storage, lambda _: self._forget(identity))

    def _forget(self, identity: int) -> None:
        self._presumed.discard(identity)
        for each in (self._storages, self._made_on_card):
            each.pop(identity, None)

    def _runs_on_host(self, args: tuple[Any, ...]) -> bool:
        if self._to_host is not None:
            return self._to_host
        if not self._storages:
            return False
        given = _tensors(args)
        return bool(given) and all(self.holds(each) for each in given)


def _storages_in(values: Any) -> list[torch.UntypedStorage]:
    return [storage for each in _tensors(values) for storage in _storages(each)]


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
