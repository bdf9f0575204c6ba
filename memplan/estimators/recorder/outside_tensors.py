"""Tensors that a step takes from outside of its model and batch, such as the weights of a teacher."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from memplan.results import Component
from memplan.training.dense_parts import is_on_meta, wraps_others

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.estimators.absent_card.host_copies import HostCopies
    from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
    from memplan.estimators.recorder.storages import StorageLedger

_LITERALS = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default})
# On a card, too, a table on the host may be indexed by places that are made there, as samples of a data set are.
_INDEXING = frozenset({torch.ops.aten.index.Tensor, torch.ops.aten.index_select.default})


class OutsideTensors:
    """Makes a block of each storage that an operator takes and none has made, for as long as it is held.

    Loss functions hold such tensors in their closures, configs in globals, and modules in attributes that are not
    registered. On a card, parameters are where their module is; other tensors are on the host until they are used
    together with tensors of the card.

    Args:
        ledger: blocks of the storages.
        host_copies: which tensors lie on the host; None if the device is the host.
        fakes: the fake tensor mode, which makes a fake of a real tensor for each operator; None if all is computed.
    """

    def __init__(self, ledger: StorageLedger, host_copies: HostCopies | None, fakes: TraceFakeMode | None) -> None:
        self._ledger = ledger
        self._host_copies = host_copies
        self._fakes = fakes
        self._held: dict[int, tuple[weakref.ref[torch.UntypedStorage], torch.Tensor]] = {}  # fakes of real tensors

    def take_in(self, operator: Any, args: tuple[Any, ...], *, module: str) -> None:
        """Make blocks of what an operator takes from outside.

        Args:
            operator: the operator.
            args: its arguments, before it runs.
            module: path of the running module.
        """
        if operator in _LITERALS:
            return
        for each in _dense_tensors(args):
            if self._ledger.block_of(each) is None and each.untyped_storage().nbytes() and not is_on_meta(each):
                self._take_in(each, module)
        if self._host_copies is not None and not (operator in _INDEXING and self._is_outside(args[0])):
            for each in self._host_copies.found_on_card(args):
                self._track(each, module)

    def _take_in(self, tensor: torch.Tensor, module: str) -> None:
        """Make a block, or presume that the tensor is on the host."""
        copies = self._host_copies
        if copies is None or copies.is_made_on_card(tensor):
            self._track(tensor, module)
        elif isinstance(tensor, nn.Parameter):
            if not copies.leaves(tensor):
                self._track(tensor, module)
        elif not (self._is_outside(tensor) or (isinstance(tensor, FakeTensor) and copies.holds(tensor))):
            copies.presume(tensor)
            copies.presume(self._stand_in(tensor))

    def _is_outside(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is, or views, a real one that was taken in."""
        storages = {id(held.untyped_storage()) for _, held in self._held.values()}
        return id(tensor.untyped_storage()) in self._held.keys() | storages

    def _track(self, tensor: torch.Tensor, module: str) -> None:
        is_parameter = isinstance(tensor, nn.Parameter)
        component = Component.PARAMETERS if is_parameter else Component.BUFFERS
        is_older = is_parameter or isinstance(tensor, FakeTensor)  # a real one may be made from an array in each step
        self._ledger.track(
            self._stand_in(tensor), component, module=module, operator="attribute", before_steps=is_older
        )

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake of a real tensor, which is held as long as that is; a fake tensor itself."""
        if self._fakes is None or isinstance(tensor, FakeTensor):
            return tensor
        storage = tensor.untyped_storage()
        identity = id(storage)
        if identity not in self._held:
            made = self._fakes.from_tensor(tensor)  # of which the mode makes those of all its views
            self._held[identity] = weakref.ref(storage, lambda _: self._held.pop(identity, None)), made
        return self._held[identity][1]


def _dense_tensors(values: Any) -> Iterator[torch.Tensor]:
    for each in values:
        if isinstance(each, torch.Tensor):
            if not wraps_others(type(each)) and each.layout is torch.strided and not _is_of_functorch(each):
                yield each
        elif isinstance(each, list | tuple):
            yield from _dense_tensors(each)


def _is_of_functorch(tensor: torch.Tensor) -> bool:
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # noqa: SLF001 - public under no other name
