"""Presumed values where memory depends on what the model computes.

- Selections (by a mask of scores, non-maximum suppression, distinct values, as many of the best as is computed) keep
  everything: an upper bound. Masks that mark sampled positions hold at no more than have been sampled.
- Choices among several, as of a router among experts, are even.
- Checks that a condition holds for all elements pass. Other conditions are decided by the draw, so that both
  ways are tried, but for those of loops.
- Numbers that a module reads are as good as any for arithmetic and logs; what it compares them with is a condition as
  above.
- Numbers that the optimizer compares with others, such as norms, are 1.
- Arrays converted to NumPy, such as the cost matrix of an assignment, are zero: it finds as many pairs for any costs.
  Whole numbers there are positions, and nobody may read them; masks hold everywhere.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from memplan.estimators.fake_tensors.computed_arrays import ComputedIntegers, taking_computed_integers
from memplan.estimators.fake_tensors.computed_numbers import ComputedNumber, NumberReads
from memplan.estimators.fake_tensors.known_values import LARGEST_ELEMENTS, is_known, known_value, remember_value
from memplan.estimators.fake_tensors.open_loops import has_open_loop
from memplan.estimators.fake_tensors.presumed_values import READ
from memplan.estimators.fake_tensors.replaced import replaced
from memplan.estimators.fake_tensors.sampled_positions import (
    follow_marks,
    follow_positions,
    follow_selections,
    most_true,
)
from memplan.user_places import named_places, place_of_call, running_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt
    from torch._ops import OpOverload

    from memplan.estimators.fake_tensors.random_draws import RandomDraws

_ATEN = torch.ops.aten
_WRITTEN = (_ATEN.index_put.default, _ATEN.index_put_.default, _ATEN._index_put_impl_.default)
_INDEXED = (
    _ATEN.index.Tensor,
    _ATEN._unsafe_index.Tensor,  # noqa: SLF001 - an operator
    *_WRITTEN,
)
_CHECKS = (_ATEN.all.default, _ATEN._is_all_true.default)  # noqa: SLF001 - an operator
_COMPARISONS = tuple(getattr(_ATEN, name).Scalar for name in ("eq", "ne", "gt", "ge", "lt", "le"))
_MOST_DECISIONS = 16  # of one module at one place: two steps of two micro-batches and evaluation take fewer
_MOST_IN_LOOPS = 1 << 14  # where loops run over something, such as boxes, and end by themselves
_CHOICES = {  # operator -> position of the chosen indices among its results; None for a single result
    _ATEN.topk.default: 1,
    _ATEN.sort.default: 1,
    _ATEN.sort.stable: 1,
    _ATEN.max.dim: 1,
    _ATEN.min.dim: 1,
    _ATEN.argmax.default: None,
    _ATEN.argmin.default: None,
}


class _Presumed(StrEnum):
    """What is presumed, at ``{}``."""

    MOST = "how much is selected by computed values ({}) is taken at its most"
    EVEN = "choices by computed values ({}) are taken to be even"
    PASSED = "conditions on all of some computed values ({}) are taken to hold"
    EITHER = "conditions on computed values ({}) are tried both ways, of which the one that takes more is counted"
    ONE = "computed numbers that the optimizer compares with others ({}) are taken as 1"
    READ = "computed numbers that the model reads ({}) are presumed"
    ZERO = "computed values that are handed to NumPy ({}) are taken as 0"


class PresumedChoices:
    """Presumes unknown values, and records where that was.

    Args:
        reads: how numbers that modules read are presumed; None for numbers that are undecided when compared.
    """

    def __init__(self, reads: NumberReads | None = None) -> None:
        self._reads = reads or NumberReads()
        self._places: dict[_Presumed, dict[str, None]] = {each: {} for each in _Presumed}
        self._decisions: Counter[tuple[str, str]] = Counter()  # by place and module

    def most(
        self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], *, run: Callable[..., Any]
    ) -> Any:
        """Return the largest possible result of an operator whose shape depends on values; None if unbounded.

        Args:
            operator: the operator.
            args: its positional arguments.
            kwargs: its keyword arguments.
            run: runs an operator on such arguments, of which it follows known values.
        """
        answer = run(operator, _with_all_chosen(args), kwargs) if operator in _INDEXED else _largest(operator, args)
        if answer is not None:
            self._note(_Presumed.MOST)
        return answer

    def write_most(self, operator: OpOverload, args: tuple[Any, ...]) -> None:
        """Let a mask of computed values that is about to be written into a known one hold everywhere."""
        follow_marks(operator, args)
        if operator in _WRITTEN and is_known(args[0]):
            written = args[2]
            if written.dtype is torch.bool and not is_known(written) and written.numel() <= LARGEST_ELEMENTS:
                self._note(_Presumed.MOST)
                with unset_fake_temporarily():
                    remember_value(written, torch.ones(written.shape, dtype=torch.bool))

    def choose(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Make choices by unknown values even, and let checks of them pass."""
        follow_selections(operator, args, result)
        if operator in _CHECKS and not is_known(result):
            self._note(_Presumed.PASSED)
            with unset_fake_temporarily():
                remember_value(result, torch.ones((), dtype=torch.bool))
        elif operator in _CHOICES:
            position = _CHOICES[operator]
            indices = result if position is None else result[position]
            if is_known(indices) or indices.numel() > LARGEST_ELEMENTS:
                return
            if remember_value(indices, _even_indices(indices, _choices(operator, args, kwargs))):
                self._note(_Presumed.EVEN)

    def decide(self, draws: RandomDraws, module: str) -> bool | None:
        """Return whether a condition that a module reads holds in this draw; None where a loop runs by it."""
        place = place_of_call() or "a package"
        self._decisions[place, module] += 1
        count = self._decisions[place, module]
        if count > _MOST_IN_LOOPS or (count > _MOST_DECISIONS and any(map(has_open_loop, running_code()))):
            return None
        self._note(_Presumed.EITHER)
        return draws.decide()

    def read(self, draws: RandomDraws, module: str) -> float:
        """Return what stands for a number that a module reads."""
        self._note(_Presumed.READ)
        return self._reads.number(lambda: self.decide(draws, module))

    def compare(self, operator: OpOverload, args: tuple[Any, ...], result: Any) -> None:
        """Let an unknown number, such as a norm that an optimizer checks, compare with others as 1 does."""
        if operator in _COMPARISONS and not args[0].dim() and not is_known(result):
            self._note(_Presumed.ONE)
            with unset_fake_temporarily():
                remember_value(result, operator(torch.ones((), dtype=args[0].dtype), args[1]))

    @contextmanager
    def converting_to_numpy(self) -> Iterator[None]:
        """Convert fake tensors to NumPy arrays of what is presumed of them while the context is open."""

        def numpy(tensor: torch.Tensor, *, force: bool = False) -> npt.NDArray[np.generic]:  # noqa: ARG001 - torch's
            real = known_value(tensor)
            is_mask = tensor.dtype is torch.bool
            if real is None:
                self._note(_Presumed.MOST if is_mask else _Presumed.ZERO)
            with _disable_current_modes():
                made = torch.full(tensor.shape, is_mask, dtype=tensor.dtype) if real is None else real
                found: npt.NDArray[np.generic] = made.numpy()
            is_read = real is not None or is_mask or tensor.is_floating_point() or tensor.is_complex()
            return found if is_read else found.view(ComputedIntegers)

        def as_array(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> npt.NDArray[np.generic]:
            found = numpy(tensor)
            if isinstance(found, ComputedIntegers):  # NumPy, which asks, would make plain zeros of them
                raise DataDependentOutputException(READ)
            return np.asarray(found, *args, **kwargs)

        with (
            replaced(FakeTensor, "numpy", numpy),  # the inherited method refuses
            replaced(FakeTensor, "__array__", as_array),
            taking_computed_integers(),
        ):
            yield

    @contextmanager
    def choosing_all_of_computed_numbers(self) -> Iterator[None]:
        """Let ``topk`` choose all there are where how many is computed, while the context is open."""

        def choosing(ordinary: Callable[..., Any]) -> Callable[..., Any]:
            def topk(input: torch.Tensor, k: Any, dim: int = -1, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - torch's
                if isinstance(k, ComputedNumber) or (isinstance(k, FakeTensor) and known_value(k) is None):
                    self._note(_Presumed.MOST)
                    k = input.shape[dim]
                return ordinary(input, k, dim, *args, **kwargs)

            return topk

        with replaced(torch, "topk", choosing(torch.topk)), replaced(FakeTensor, "topk", choosing(torch.Tensor.topk)):
            yield

    @property
    def notes(self) -> tuple[str, ...]:
        """Say what was presumed and where, one phrase per kind."""
        return tuple(
            f"{presumed.format(named_places(places))}; only computing the model shows what they are"
            for presumed, places in self._places.items()
            if places
        )

    def _note(self, presumed: _Presumed) -> None:
        self._places[presumed].setdefault(place_of_call() or "the backward pass")


def _with_all_chosen(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace unknown masks by the positions of all elements."""
    indices: list[Any] = []
    for each in args[1]:
        if isinstance(each, torch.Tensor) and each.dtype in {torch.bool, torch.uint8}:
            is_vector = each.dim() == 1
            indices += [_selected(each)] if is_vector else [_all_along(dim, each) for dim in range(each.dim())]
        else:
            indices.append(each)
    return (args[0], indices, *args[2:])


def _all_along(dim: int, mask: torch.Tensor) -> torch.Tensor:
    positions = torch.empty(mask.numel(), dtype=torch.long)
    return _with_value(positions, lambda: torch.ones(mask.shape).nonzero()[:, dim])


def _all_or_selected(mask: torch.Tensor) -> torch.Tensor:
    """Return the positions that ``nonzero`` may find, one a row."""
    if mask.dim() == 1:
        return _selected(mask, 1)
    positions = torch.empty(mask.numel(), mask.dim(), dtype=torch.long)
    return _with_value(positions, lambda: torch.ones(mask.shape).nonzero())


def _selected(mask: torch.Tensor, *further_dimensions: int) -> torch.Tensor:
    """Return as many positions as a vector can select: all, or some from the first to the last."""
    count = most_true(mask)
    positions = torch.empty(count, *further_dimensions, dtype=torch.long)
    follow_positions(positions, mask)
    return _with_value(positions, lambda: (torch.arange(count) * mask.numel() // max(count, 1)).view(positions.shape))


def _largest(operator: OpOverload, args: tuple[Any, ...]) -> Any:
    source: torch.Tensor = args[0]
    name = operator._schema.name  # noqa: SLF001 - in no public attribute
    count = source.numel()
    if name == "aten::nonzero":
        return _all_or_selected(source)
    if name == "aten::masked_select":
        together = torch.broadcast_shapes(source.shape, args[1].shape)  # type: ignore[no-untyped-call]  # untyped in torch
        return source.new_empty(together.numel())
    if name == "torchvision::nms":
        kept = torch.empty(source.shape[0], dtype=torch.long)
        return _with_value(kept, lambda: torch.arange(kept.numel()))
    if name == "aten::_unique2":
        has_inverse, has_counts = (len(args) > place and args[place] for place in (2, 3))
        inverse = torch.empty(source.shape if has_inverse else 0, dtype=torch.long)
        return source.new_empty(count), inverse, torch.empty(count if has_counts else 0, dtype=torch.long)
    if name == "aten::unique_dim":
        counts = torch.empty(source.shape[args[1]], dtype=torch.long)
        return torch.empty_like(source), counts, torch.empty_like(counts)
    return None


def _with_value(positions: torch.Tensor, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Let small positions of all elements be known, since code finds other known values by them."""
    if positions.numel() <= LARGEST_ELEMENTS:
        with unset_fake_temporarily():
            remember_value(positions, compute())
    return positions


def _choices(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return how many elements an operator chooses among: those of a dimension, or all."""
    source: torch.Tensor = args[0]
    named = enumerate(operator._schema.arguments)  # noqa: SLF001 - in no public attribute
    place, argument = next((place, each) for place, each in named if each.name == "dim")
    dim = args[place] if place < len(args) else kwargs.get("dim", argument.default_value)
    return source.numel() if dim is None or not source.dim() else source.shape[dim]


def _even_indices(like: torch.Tensor, choices: int) -> torch.Tensor:
    with unset_fake_temporarily():
        return torch.arange(like.numel()).remainder_(max(choices, 1)).view(like.shape)
