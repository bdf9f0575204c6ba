"""Hiding from code that tensors are fake, where it inspects the tensors themselves.

- Checks of libraries for fake tensors return False, because a real step takes another path: transformers 5 drops a mask
  that hides nothing, unless the mask is fake.
- ``CausalBias`` is made as a real tensor; it is empty, and a fake tensor cannot become a subclass.
- Text is formatted with the known value of a fake tensor, as in the name of a module; an unknown number that is
  formatted by a specification is read as by ``item``.
- ``copy.deepcopy`` clones a fake tensor; it would copy the storage, which is empty, and end the process.
- ``torch._shape_as_tensor`` returns a known vector; it would write into memory that a fake one has not.
- ``torch.tensor`` of a list reads known values of the fake tensors in it; it disables modes, and would read empty
  memory.
"""

from __future__ import annotations

import copy
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention.bias import CausalBias
from torch.utils._python_dispatch import _disable_current_modes

from memplan.estimators.fake_tensors.known_values import known_vector, value_read
from memplan.estimators.fake_tensors.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CHECKS = (("transformers.utils.import_utils", "is_fake_tensor"),)
_READS = ("__index__", "__float__", "__bool__")


@contextmanager
def hiding_fakes() -> Iterator[None]:
    """Make torch's constructors and the libraries loaded so far treat fake tensors as real ones."""
    with ExitStack() as stack:
        for module_name, check in _CHECKS:
            module = sys.modules.get(module_name)
            if hasattr(module, check):
                stack.enter_context(replaced(module, check, lambda *_: False))
        for read in _READS:
            stack.enter_context(replaced(FakeTensor, read, _reading_known(getattr(torch.Tensor, read))))
        stack.enter_context(replaced(FakeTensor, "__format__", _formatted))
        stack.enter_context(replaced(FakeTensor, "__deepcopy__", _deep_copied))
        stack.enter_context(replaced(torch, "_shape_as_tensor", _shape_as_tensor))
        stack.enter_context(replaced(CausalBias, "__new__", staticmethod(_real_tensor)))
        yield


def _real_tensor(kind: type[torch.Tensor], *sizes: int) -> torch.Tensor:
    """Return the real tensor ``kind(*sizes)``."""
    with _disable_current_modes():
        return torch.Tensor.__new__(kind, *sizes)


def _shape_as_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return known_vector(list(tensor.shape), like=tensor)


def _deep_copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    if id(tensor) in memo:
        copied: torch.Tensor = memo[id(tensor)]
        return copied
    if not tensor.is_leaf:
        torch.Tensor.__deepcopy__(tensor, memo)  # type: ignore[no-untyped-call]  # refuses
    copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    if isinstance(tensor, nn.Parameter):
        copied = nn.Parameter(copied, requires_grad=tensor.requires_grad)
    elif tensor.grad is not None:
        copied.grad = copy.deepcopy(tensor.grad, memo)
    memo[id(tensor)] = copied
    return copied


def _formatted(tensor: torch.Tensor, how: str) -> str:
    real = value_read(tensor)
    if real is None:
        return format(tensor.item(), how) if how and not tensor.dim() else object.__format__(tensor, how)
    with _disable_current_modes():
        return f"{real:{how}}"


def _reading_known(read: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    def number(tensor: torch.Tensor) -> Any:
        real = value_read(tensor)
        return read(tensor if real is None else real)

    return number
