"""How many elements of a computed mask can hold, where its values are not known but how they came about is.

Detectors sample positions by their labels, so many of each kind, mark them, and then select by the marks or by the
labels that they find there. Neither labels nor marks are known; that at most so many are marked is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.fake_tensors.known_values import is_known, known_true_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch._ops import OpOverload

    _Ranges = tuple[tuple[float, float], ...]  # of whole numbers, ends included

_ATEN = torch.ops.aten
_SHARES = "memplan_shares"
_SOURCE = "memplan_source"
_NUMBERS = count()
_MASKS = (torch.bool, torch.uint8)
_ANY: _Ranges = ((-math.inf, math.inf),)
_COMPARED: dict[OpOverload, Callable[[float], _Ranges]] = {
    _ATEN.eq.Scalar: lambda number: ((math.ceil(number), math.floor(number)),),
    _ATEN.ne.Scalar: lambda number: ((-math.inf, math.ceil(number) - 1), (math.floor(number) + 1, math.inf)),
    _ATEN.gt.Scalar: lambda number: ((math.floor(number) + 1, math.inf),),
    _ATEN.ge.Scalar: lambda number: ((math.ceil(number), math.inf),),
    _ATEN.lt.Scalar: lambda number: ((-math.inf, math.ceil(number) - 1),),
    _ATEN.le.Scalar: lambda number: ((-math.inf, math.floor(number)),),
}
_ANDS = (_ATEN.bitwise_and.Tensor, _ATEN.logical_and.default)
_ORS = (_ATEN.bitwise_or.Tensor, _ATEN.logical_or.default)
_MARKS = (_ATEN.index_put_.default, _ATEN._index_put_impl_.default)
_FILLS = (_ATEN.index_fill_.int_Scalar, _ATEN.index_fill_.int_Tensor)  # of a number, by indices from PyTorch 2.15 on
_CONVERSION = _ATEN._to_copy.default  # noqa: SLF001 - an operator
_REARRANGED = (  # elements stay the same
    _CONVERSION,
    _ATEN.alias.default,
    _ATEN.clone.default,
    _ATEN.detach.default,
    _ATEN.select.int,
    _ATEN.squeeze.default,
    _ATEN.squeeze.dim,
    _ATEN.unbind.int,
    _ATEN.unsqueeze.default,
    _ATEN.view.default,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """Some elements of whole numbers, or of the positions that a mask or a vector of indices selects.

    Args:
        most: how many there may be.
        values: what the elements are, or what the source has at these positions.
        source: number of the tensor that the positions are of, such as labels; None if unknown, or for elements.
    """

    most: int
    values: _Ranges = _ANY
    source: int | None = None


def most_true(mask: torch.Tensor) -> int:
    """Return how many elements of a mask can hold: all, or fewer where the mask marks sampled positions."""
    shares = _shares(mask)
    return mask.numel() if shares is None else min(mask.numel(), _total(shares))


def follow_positions(positions: torch.Tensor, mask: torch.Tensor) -> None:
    """Let positions be those that a mask selects."""
    shares = _shares(mask)
    if shares is not None:
        _remember(positions, shares)


def follow_marks(operator: OpOverload, args: tuple[Any, ...]) -> None:
    """Follow what an operator is about to mark in a mask; autograd counts the write once it is done."""
    if operator in _FILLS:
        mask, _dim, indices, value = args
    elif operator in _MARKS and len(args[1]) == 1:
        mask, (indices,), value = args[:3]
    else:
        return
    if mask.dtype not in _MASKS or mask.dim() != 1:
        return
    marked = _selected(mask)
    written_true = known_true_count(value) if isinstance(value, torch.Tensor) else value
    if marked is None or written_true is None or indices is None or indices.dtype in _MASKS:
        return
    _remember(mask, (*marked, *_positions(indices)) if written_true else marked, writes=1)


def follow_selections(operator: OpOverload, args: tuple[Any, ...], result: Any) -> None:
    """Follow which elements an operator compares, joins or picks by their positions."""
    if operator is _CONVERSION and args[0].dtype in _MASKS and result.dtype not in _MASKS:
        return  # of what a mask does not select, nothing is remembered
    found = _found(operator, args)
    if found is not None:
        for each in (result,) if isinstance(result, torch.Tensor) else result:
            _remember(each, found)


def _found(operator: OpOverload, args: tuple[Any, ...]) -> tuple[_Share, ...] | None:
    if operator in _COMPARED:
        return _compared(args[0], _COMPARED[operator](args[1])) if _are_compared(*args) else None
    if operator in _ANDS or operator in _ORS:
        combined = _both if operator in _ANDS else _either
        return combined(*map(_selected, args[:2])) if args[0].shape == args[1].shape else None
    if operator is _ATEN.index.Tensor:
        return _picked(args[0], args[1])
    if operator is _ATEN.cat.default:
        return _joined(args[0])
    return _shares(args[0]) if operator in _REARRANGED else None


def _are_compared(numbers: torch.Tensor, number: float) -> bool:
    """Whether these are whole numbers, no mask, and a finite one."""
    return _is_vector_of_whole_numbers(numbers) and numbers.dtype not in _MASKS and math.isfinite(number)


def _compared(numbers: torch.Tensor, values: _Ranges) -> tuple[_Share, ...] | None:
    """Return where whole numbers are within some ranges."""
    source = _source(numbers)
    within = (
        (each.most, _common(each.values if each.source is None else _ANY, values)) for each in _positions(numbers)
    )
    return tuple(_Share(most=most, values=common, source=source) for most, common in within if common)


def _both(ours: tuple[_Share, ...] | None, theirs: tuple[_Share, ...] | None) -> tuple[_Share, ...] | None:
    """Return where two masks hold: within what each selects alone, and within both where that is of one source."""
    if ours is None or theirs is None:
        return theirs if ours is None else ours
    pairs = ((mine, other, _common(mine.values, other.values)) for mine in ours for other in theirs)
    both = tuple(
        replace(mine, most=min(mine.most, other.most), values=common) for mine, other, common in pairs if common
    )
    sources = {each.source for each in (*ours, *theirs)}
    is_of_one = len(sources) == 1 and None not in sources
    return min(both if is_of_one else ours, ours, theirs, key=_total)


def _either(ours: tuple[_Share, ...] | None, theirs: tuple[_Share, ...] | None) -> tuple[_Share, ...] | None:
    """Return where one of two masks holds."""
    return None if ours is None or theirs is None else ours + theirs


def _picked(picked: torch.Tensor, indices: list[torch.Tensor | None]) -> tuple[_Share, ...] | None:
    """Return what there is at some positions: positions of another tensor, or numbers that are known to be there."""
    by = indices[0] if len(indices) == 1 else None
    if by is None or by.dtype in _MASKS or picked.dim() != 1:
        return None
    source, places, shares = _source(picked), _shares(by) or (), _shares(picked)
    if source is not None and source in {each.source for each in places}:
        return tuple(_Share(most=each.most, values=each.values if each.source == source else _ANY) for each in places)
    return None if shares is None else tuple(replace(each, most=by.numel()) for each in shares)


def _joined(parts: list[torch.Tensor]) -> tuple[_Share, ...] | None:
    """Return the shares of vectors one after another: positions in each mask are none of the whole."""
    if not all(map(_is_vector_of_whole_numbers, parts)):
        return None
    are_masks = parts[0].dtype in _MASKS
    if any((each.dtype in _MASKS) is not are_masks for each in parts):
        return None
    shares = list(map(_selected if are_masks else _positions, parts))
    if any(each is None for each in shares) or all(_shares(each) is None for each in parts):
        return None
    found = tuple(each for of_part in shares for each in of_part or ())
    return tuple(_Share(most=each.most) for each in found) if are_masks else found


def _selected(mask: Any) -> tuple[_Share, ...] | None:
    """Return what a mask selects; None if that may be everything."""
    if not isinstance(mask, torch.Tensor) or mask.dtype not in _MASKS:
        return None
    return (_Share(most=known_true_count(mask) or 0),) if is_known(mask) else _shares(mask)


def _positions(numbers: torch.Tensor) -> tuple[_Share, ...]:
    return _shares(numbers) or (_Share(most=numbers.numel()),)


def _is_vector_of_whole_numbers(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 1 and not tensor.is_floating_point() and not tensor.is_complex()


def _common(ours: _Ranges, theirs: _Ranges) -> _Ranges:
    both = ((max(ours_low, low), min(ours_high, high)) for ours_low, ours_high in ours for low, high in theirs)
    return tuple((low, high) for low, high in both if low <= high)


def _total(shares: Iterable[_Share]) -> int:
    return sum(each.most for each in shares)


def _source(tensor: torch.Tensor) -> int | None:
    """Return a number for a tensor as it is now; None where nobody counts how often it is written to."""
    if tensor.is_inference():
        return None
    version, number = getattr(tensor, _SOURCE, (None, None))
    if version != tensor._version:  # noqa: SLF001 - public under no other name
        number = next(_NUMBERS)
        setattr(tensor, _SOURCE, (tensor._version, number))  # noqa: SLF001 - as above
    return number


def _remember(tensor: torch.Tensor, shares: tuple[_Share, ...], *, writes: int = 0) -> None:
    """Remember the shares of a tensor until it is written to, or once it has been so often."""
    if not tensor.is_inference():
        setattr(tensor, _SHARES, (tensor._version + writes, shares))  # noqa: SLF001 - as above


def _shares(tensor: torch.Tensor) -> tuple[_Share, ...] | None:
    """Return what is remembered of a tensor; None if nothing is, or if it was written to."""
    version, shares = getattr(tensor, _SHARES, (None, None))
    return shares if version is not None and version == tensor._version else None  # noqa: SLF001 - as above
