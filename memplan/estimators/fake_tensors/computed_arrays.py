"""NumPy arrays of whole numbers that only computing the model tells: good to index with, and not to be read."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from memplan.estimators.fake_tensors.known_values import forget_values
from memplan.estimators.fake_tensors.presumed_values import READ
from memplan.estimators.fake_tensors.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_READING = (
    "__array_ufunc__", "__array_function__", "__int__", "__index__", "__float__", "__bool__", "__contains__",
    "item", "tolist", "tobytes", "nonzero", "argmax", "argmin", "argsort", "searchsorted", "sort",
)  # fmt: skip
_TAKING = ("from_numpy", "as_tensor", "tensor")


class ComputedIntegers(np.ndarray[Any, Any]):
    """Zeros that stand for such numbers.

    Raises:
        DataDependentOutputException: one of them is read, or something is computed from them.
    """

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return found if isinstance(found, np.ndarray) else _read(self)


def _read(_: ComputedIntegers, *_args: Any, **_named: Any) -> NoReturn:
    raise DataDependentOutputException(READ)


for _name in _READING:
    setattr(ComputedIntegers, _name, _read)


@contextmanager
def taking_computed_integers() -> Iterator[None]:
    """Let what PyTorch makes of such arrays be fake tensors without known values while the context is open."""

    def taking(ordinary: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def taken(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            if not isinstance(data, ComputedIntegers):
                return ordinary(data, *args, **kwargs)
            like = ordinary(np.empty(data.shape, data.dtype), *args, **kwargs)
            made = torch.empty(like.shape, dtype=like.dtype, device=like.device)
            forget_values(made)
            return made

        return taken

    with ExitStack() as stack:
        for name in _TAKING:
            stack.enter_context(replaced(torch, name, taking(getattr(torch, name))))
        yield
