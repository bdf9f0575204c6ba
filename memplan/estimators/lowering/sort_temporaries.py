"""Temporaries of CUDA's sorts, and of kernels that sort, for calls; ``temporaries.sorts`` has them by lengths alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.composite_temporaries import selected_positions
from memplan.estimators.lowering.contiguous_copies import copies
from memplan.estimators.lowering.temporary_bytes import INT64_BYTES, NO_TEMPORARIES, TemporaryBytes
from memplan.estimators.temporaries.ruled_blocks import ruled_blocks
from memplan.estimators.temporaries.sorts import LARGEST_SORTED_IN_PLACE, digit_counts, second_pairs, sorting

if TYPE_CHECKING:
    import torch

    from memplan.estimators.lowering.temporary_bytes import Blocks
    from memplan.estimators.temporaries.ruled_blocks import RuledBlock

_MOST_COUNTED_AT_ONCE = 2048  # of a row, by one block of threads
_MOST_NARROW_KEYS = 30_083  # ``bits <= 32`` in ``randperm_out_cuda``


def sort(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Return the temporaries of a sort along a dimension (``Sort.cpp``, ``SortStable.cu``).

    Args:
        args: keys and dimension; between them whether the sort is stable, if that is said.
        _result: sorted keys and positions.
    """
    keys: torch.Tensor = args[0]
    dim = next((each for each in args[1:3] if isinstance(each, int) and not isinstance(each, bool)), -1)
    if not keys.dim():
        return NO_TEMPORARIES
    size, position_bytes = keys.shape[dim], keys.numel() * INT64_BYTES
    if size <= LARGEST_SORTED_IN_PLACE:
        return TemporaryBytes(after_results=(size * INT64_BYTES,))
    in_order = () if keys.stride(dim) == 1 else (keys.nbytes, keys.nbytes, position_bytes)
    return TemporaryBytes(after_results=(*in_order, *_sorting(keys, size)))


def _sorting(keys: torch.Tensor, size: int) -> tuple[RuledBlock, ...]:
    return ruled_blocks(sorting, keys.numel() // max(size, 1), size, keys.element_size())


def randperm(_args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """Sort positions by random keys, which are wider where many might be equal (``Randperm.cu``)."""
    count = result.numel()
    key_bytes = count * (4 if count <= _MOST_NARROW_KEYS else INT64_BYTES)
    return TemporaryBytes(after_results=(result.nbytes, key_bytes, key_bytes, key_bytes + result.nbytes))


def median(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """A sort of all elements (``median_impl`` in ``cuda/Sorting.cpp``); along a dimension a contiguous copy."""
    source: torch.Tensor = args[0]
    copied = copies((source,))
    if len(args) > 1:
        return TemporaryBytes(after_results=copied)
    count = source.numel()
    return TemporaryBytes(before_results=(*copied, source.nbytes, count * INT64_BYTES, *_sorting(source, count)))


def mode(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """A copy with the dimension last, unless it lies so (``mode_kernel_impl`` in ``cuda/TensorModeKernel.cpp``).

    Long rows are sorted in a copy, one by one, with their positions (``ModeImpl`` in ``TensorModeKernel.cu``).
    """
    source: torch.Tensor = args[0]
    dim = args[1] if len(args) > 1 else -1
    size = source.shape[dim] if source.dim() else 1
    if size <= 1:
        return NO_TEMPORARIES
    rows = source.transpose(dim, -1)
    if size <= _MOST_COUNTED_AT_ONCE:
        return TemporaryBytes(after_results=copies((rows,)))
    positions_bytes = size * INT64_BYTES
    sorting_bytes = size * source.element_size() + positions_bytes
    return TemporaryBytes(after_results=(source.nbytes, positions_bytes, sorting_bytes))


def unique(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Sorted elements, with their positions if the inverse is returned (``UniqueCub.cu``)."""
    source: torch.Tensor = args[0]
    copied = copies((source,))
    if len(args) <= 2 or not args[2]:
        return TemporaryBytes(around_results=(*copied, source.nbytes, (source.nbytes,)))
    places_bytes = source.numel() * INT64_BYTES
    sorting = (places_bytes, source.nbytes + places_bytes)
    return TemporaryBytes(around_results=(*copied, source.nbytes, places_bytes, sorting, places_bytes))


def accumulating_index_put(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Linear, sorted, original and running indices (``index_put_with_sort_kernel`` in ``Indexing.cu``).

    Values that are broadcast or not contiguous are copied. Up to 256 places are told apart by eight bits, and CUB sorts
    by these in one pass, which needs no second pairs (``dispatch_radix_sort.cuh``).
    """
    source, indices, values = args[:3]
    positions = selected_positions(source, indices, values)
    elements = positions * (source.numel() // max(_indexed_elements(source, indices), 1))
    is_read_as_it_is = values.numel() == elements and values.is_contiguous()
    copied = () if is_read_as_it_is else (elements * values.element_size(),)
    each_bytes = positions * INT64_BYTES
    again = ruled_blocks(second_pairs, positions, _places(source, indices))
    return TemporaryBytes(after_results=(each_bytes, *copied, each_bytes, each_bytes, (each_bytes, *again)))


def _indexed_elements(source: torch.Tensor, indices: list[torch.Tensor | None]) -> int:
    return math.prod(source.shape[dim] for dim in _indexed_dims(indices))


def _places(source: torch.Tensor, indices: list[torch.Tensor | None]) -> int:
    """Return how many places the linear index tells apart: all dimensions up to the last indexed one."""
    return math.prod(source.shape[: max(_indexed_dims(indices), default=-1) + 1])


def _indexed_dims(indices: list[torch.Tensor | None]) -> list[int]:
    place = 0
    dims: list[int] = []
    for each in indices:
        taken = each.dim() if each is not None and not each.dtype.is_signed else 1  # masks and bytes
        if each is not None:
            dims += range(place, place + taken)
        place += taken
    return dims


def topk(args: tuple[Any, ...], result: Any) -> TemporaryBytes:
    """A contiguous copy and digit counts, or a sort of more than 4096 results (``TensorTopK.cu`` and ``.cpp``).

    The elements per thread depend on the card's multiprocessors; those of an H100 are assumed, and others change the
    digit counts by some hundred KiB.
    """
    keys: torch.Tensor = args[0]
    values: torch.Tensor = result[0]
    dim = args[2] if len(args) > 2 else -1
    is_sorted = len(args) <= 4 or bool(args[4])
    size, found = (keys.shape[dim], values.shape[dim]) if keys.dim() else (1, 1)
    if not size or not found:
        return NO_TEMPORARIES
    counts = ruled_blocks(digit_counts, keys.numel() // size, size, keys.element_size())
    selecting: Blocks = (*copies((keys,)), *counts)
    if not is_sorted or found <= LARGEST_SORTED_IN_PLACE:
        return TemporaryBytes(after_results=selecting)
    positions_bytes = values.numel() * INT64_BYTES
    beside_results = (positions_bytes, values.nbytes, _sorting(values, found), positions_bytes)
    return TemporaryBytes(after_results=(selecting, beside_results))
