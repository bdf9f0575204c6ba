"""Numbers that a model reads from computed tensors: as good as any for logs and sums, and undecided when compared.

They are no sizes: what they are made a whole number for ends the trace, ranges up to them do, and PyTorch, which asks
for an integer's type, refuses them.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

from memplan.estimators.fake_tensors.known_values import is_known
from memplan.estimators.fake_tensors.presumed_values import READ
from memplan.estimators.fake_tensors.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PLAIN = 1.5  # compilers leave out products with 1
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_ARITHMETIC = (*(f"__{side}{name}__" for name in _BINARY for side in ("", "r")), "__neg__", "__pos__", "__abs__")
_COMPARISONS = ("__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__", "__bool__")
_TO_WHOLE = ("__int__", "__index__", "__trunc__", "__floor__", "__ceil__")


class ComputedNumber(float):
    """A number that only computing the model tells.

    What arithmetic makes of it is one as well, but for functions of ``math``.

    Raises:
        DataDependentOutputException: a comparison may not be presumed, or it is made a whole number, such as a size.
    """

    decide: Callable[[], bool | None]

    def __new__(cls, value: float, decide: Callable[[], bool | None]) -> Self:
        """Make one.

        Args:
            value: what arithmetic and texts take it for.
            decide: returns which way a comparison goes; None where that may not be presumed.
        """
        made = super().__new__(cls, value)
        made.decide = decide
        return made

    __hash__ = float.__hash__

    def __format__(self, how: str) -> str:
        return format(round(float(self)) if how.endswith("d") else float(self), how)

    def __round__(self, ndigits: Any = None) -> Any:
        return _made_whole(self) if ndigits is None else ComputedNumber(float.__round__(self, ndigits), self.decide)


def _compared(number: ComputedNumber, *_: object) -> bool:
    decided = number.decide()
    if decided is None:
        raise DataDependentOutputException(READ)
    return decided


def _made_whole(_: ComputedNumber) -> int:
    raise DataDependentOutputException(READ)


def _refusing(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function that takes any number for a bound, and makes as many elements, end the trace."""

    def made(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(each, ComputedNumber) for each in (*args, *kwargs.values())):
            raise DataDependentOutputException(READ)
        return make(*args, **kwargs)

    return made


def _arithmetic(of_floats: Callable[..., Any]) -> Callable[..., Any]:
    def computed(number: ComputedNumber, *others: Any) -> Any:
        found = of_floats(number, *others)
        return ComputedNumber(found, number.decide) if isinstance(found, float) else found

    return computed


for _name in _ARITHMETIC:
    setattr(ComputedNumber, _name, _arithmetic(getattr(float, _name)))
for _name in _COMPARISONS:
    setattr(ComputedNumber, _name, _compared)
for _name in _TO_WHOLE:
    setattr(ComputedNumber, _name, _made_whole)


@dataclass(slots=True, kw_only=True)
class NumberReads:
    """How numbers that modules read are presumed in the runs of a step, and what these did with them.

    Args:
        are_plain: whether they are Python's own, which compilers take for constants; nothing is learnt of these.
        were_read: whether there was one.
        were_compared: whether one was compared.
    """

    are_plain: bool = False
    were_read: bool = False
    were_compared: bool = False

    def number(self, decide: Callable[[], bool | None]) -> float:
        """Return what stands for a number that is read.

        Args:
            decide: returns which way a comparison goes, as of :class:`ComputedNumber`.
        """
        self.were_read = True
        return _PLAIN if self.are_plain else ComputedNumber(1.0, lambda: self._compared(decide))

    def _compared(self, decide: Callable[[], bool | None]) -> bool | None:
        self.were_compared = True
        return decide()


@contextmanager
def reading_computed_numbers(read: Callable[[], float | None]) -> Iterator[None]:
    """Ask what ``item()`` and ``float()`` of unknown numbers return while the context is open.

    Args:
        read: returns the number that stands for one; None where it is read as ever.
    """
    ordinary_item, ordinary_float = FakeTensor.item, FakeTensor.__float__

    def read_of(tensor: torch.Tensor) -> float | None:
        is_number = tensor.dtype is not torch.bool and not tensor.is_complex()
        is_asked = is_number and tensor.numel() == 1 and not is_known(tensor)
        return read() if is_asked else None

    def item(tensor: torch.Tensor) -> Any:
        found = read_of(tensor)
        return ordinary_item(tensor) if found is None else found

    def as_float(tensor: torch.Tensor) -> Any:
        found = read_of(tensor)
        return ordinary_float(tensor) if found is None else float(found)  # Python takes no other type

    def rounded(tensor: torch.Tensor) -> int:
        return int(tensor)  # math.ceil and math.floor, which would ask for a float

    with (
        replaced(torch, "arange", _refusing(torch.arange)),
        replaced(np, "arange", _refusing(np.arange)),
        replaced(FakeTensor, "item", item),
        replaced(FakeTensor, "__float__", as_float),
        replaced(FakeTensor, "__ceil__", rounded),
        replaced(FakeTensor, "__floor__", rounded),
    ):
        yield
