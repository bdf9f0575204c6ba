"""Letting fake tensors pass for real ones where code looks at the tensor and not at what is computed with it.

- Libraries that ask whether they are being traced are told no, because a real step takes other paths: transformers 5
  leaves away a mask that hides nothing, and attention then runs without one, unless the mask is fake.
- ``CausalBias`` is an empty tensor beside the two lengths that it stands for; a fake one cannot become a subclass.
- Text gets the number that a fake tensor is known to hold, as where a module is found by it; another one is read.
- ``torch.tensor`` takes known numbers out of the fake ones in a list; it sets modes aside, and would read empty memory.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention.bias import CausalBias
from torch.utils._python_dispatch import _disable_current_modes

from memplan.estimators.fake_tensors.known_values import value_read
from memplan.estimators.fake_tensors.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_QUESTIONS = (("transformers.utils.import_utils", "is_fake_tensor"),)
_READS = ("__index__", "__float__", "__bool__")


@contextmanager
def hiding_fakes() -> Iterator[None]:
    """Let fake tensors pass for real ones before torch's constructors and libraries that are loaded by now."""
    with ExitStack() as stack:
        for module_name, question in _QUESTIONS:
            module = sys.modules.get(module_name)
            if hasattr(module, question):
                stack.enter_context(replaced(module, question, lambda *_: False))
        for read in _READS:
            stack.enter_context(replaced(FakeTensor, read, _of_known(getattr(torch.Tensor, read))))
        stack.enter_context(replaced(FakeTensor, "__format__", _formatted))
        stack.enter_context(replaced(CausalBias, "__new__", staticmethod(_made_for_real)))
        yield


def _made_for_real(kind: type[torch.Tensor], *sizes: int) -> torch.Tensor:
    """Make an empty tensor as ``kind(*sizes)`` does where nothing is traced."""
    with _disable_current_modes():
        return torch.Tensor.__new__(kind, *sizes)


def _formatted(tensor: torch.Tensor, how: str) -> str:
    real = value_read(tensor)
    if real is None:
        return format(tensor.item(), how) if how and not tensor.dim() else object.__format__(tensor, how)
    with _disable_current_modes():
        return f"{real:{how}}"


def _of_known(read: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    def number(tensor: torch.Tensor) -> Any:
        real = value_read(tensor)
        return read(tensor if real is None else real)

    return number
