"""Temporaries of CUDA's sorts, and of kernels that sort.

CUB sorts pairs with a buffer of the same size (``DeviceRadixSort::SortPairs`` does not overwrite its input). Its
histograms, of some kilobytes, are not counted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.composite_temporaries import selected_positions
from memplan.estimators.lowering.contiguous_copies import copies
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes

if TYPE_CHECKING:
    import torch

    from memplan.estimators.lowering.temporary_bytes import Blocks

_INT64, _INT32 = 8, 4
_LARGEST_SORTED_IN_PLACE = 4096  # ``should_use_small_sort`` in ``Sort.h``
_FEWEST_SORTED_ONE_BY_ONE = 1_000_000
_FEWEST_SEGMENTS_SORTED_AS_SUCH = 128
_MOST_NARROW_KEYS = 30_083  # ``bits <= 32`` in ``randperm_out_cuda``
# of ``topk``
_COUNT_BYTES = 2
_DIGITS = 256
_THREADS = 256
_FEWEST_ITEMS, _MOST_ITEMS = 4, 64  # of each thread
_THREADS_AT_ONCE = 132 * 6 * _THREADS  # six blocks, of 40 registers a thread, on each multiprocessor of an H100
# (slices, elements): several blocks read a slice of at least so many elements, of up to so many slices
# (``should_use_multiblock``).
_MULTIBLOCK_FROM = ((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800))
_MULTIBLOCK_FROM_ELSE = 400


def sort(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Return the temporaries of a sort along a dimension (``Sort.cpp``, ``SortStable.cu``).

    Args:
        args: keys and dimension; of a stable sort whether it is, keys and dimension.
        _result: sorted keys and positions.
    """
    keys: torch.Tensor = args[0]
    dim = next((each for each in args[1:3] if isinstance(each, int) and not isinstance(each, bool)), -1)
    if not keys.dim():
        return NO_TEMPORARIES
    size, key_bytes, position_bytes = keys.shape[dim], keys.numel() * keys.element_size(), keys.numel() * _INT64
    if size <= _LARGEST_SORTED_IN_PLACE:
        return TemporaryBytes(after_results=size * _INT64)
    in_order = () if keys.stride(dim) == 1 else (key_bytes, key_bytes, position_bytes)
    return TemporaryBytes(after_results=(*in_order, *sorting_bytes(keys, size)))


def sorting_bytes(keys: torch.Tensor, size: int) -> tuple[Blocks, ...]:
    """Return the blocks of a sort of slices beside its results: none for slices of up to 4096 elements."""
    if size <= _LARGEST_SORTED_IN_PLACE:
        return ()
    segments = keys.numel() // size
    pair_bytes = keys.element_size() + _INT64
    if segments == 1 or size >= _FEWEST_SORTED_ONE_BY_ONE:
        return size * _INT64, size * pair_bytes
    if segments < _FEWEST_SEGMENTS_SORTED_AS_SUCH:  # positions with their segments twice, and sorted keys
        positions_bytes = keys.numel() * _INT64
        return positions_bytes, positions_bytes, keys.numel() * keys.element_size(), keys.numel() * pair_bytes
    return keys.numel() * _INT64, keys.numel() * pair_bytes


def permutation(_args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """Sort positions by random keys, which are wider where many might be equal (``Randperm.cu``)."""
    count = result.numel()
    key_bytes = count * (4 if count <= _MOST_NARROW_KEYS else _INT64)
    return TemporaryBytes(after_results=(result.nbytes, key_bytes, key_bytes, key_bytes + result.nbytes))


def median(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """A sort of all elements (``median_impl`` in ``cuda/Sorting.cpp``); along a dimension a contiguous copy."""
    source: torch.Tensor = args[0]
    copied = copies((source,))
    if len(args) > 1:
        return TemporaryBytes(after_results=copied or 0)
    count = source.numel()
    made = (count * source.element_size(), count * _INT64)
    return TemporaryBytes(before_results=(*copied, *made, *sorting_bytes(source, count)))


def unique(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Sorted elements, with their positions if the inverse is returned (``UniqueCub.cu``)."""
    source: torch.Tensor = args[0]
    copied = copies((source,))
    sorted_bytes = source.numel() * source.element_size()
    if len(args) <= 2 or not args[2]:
        return TemporaryBytes(around_results=(*copied, sorted_bytes, (sorted_bytes,)))
    places_bytes = source.numel() * _INT64
    sorting = (places_bytes, sorted_bytes + places_bytes)
    return TemporaryBytes(around_results=(*copied, sorted_bytes, places_bytes, sorting, places_bytes))


def accumulating_index_put(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Linear, sorted, original and running indices (``index_put_with_sort_kernel`` in ``Indexing.cu``).

    Values that are broadcast or not contiguous are copied.
    """
    if len(args) < 4 or not args[3]:
        return NO_TEMPORARIES
    source, indices, values = args[:3]
    positions = selected_positions(source, indices, values)
    elements = positions * (source.numel() // max(_indexed_elements(source, indices), 1))
    is_read_as_it_is = values.numel() == elements and values.is_contiguous()
    copied = () if is_read_as_it_is else (elements * values.element_size(),)
    each_bytes = positions * _INT64
    return TemporaryBytes(after_results=(each_bytes, *copied, each_bytes, each_bytes, (each_bytes, 2 * each_bytes)))


def _indexed_elements(source: torch.Tensor, indices: list[torch.Tensor | None]) -> int:
    place = 0
    sizes: list[int] = []
    for each in indices:
        taken = each.dim() if each is not None and not each.dtype.is_signed else 1  # masks and bytes
        if each is not None:
            sizes += source.shape[place : place + taken]
        place += taken
    return math.prod(sizes)


def top_k(args: tuple[Any, ...], result: Any) -> TemporaryBytes:
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
    selecting = (*copies((keys,)), *_counts(keys.numel() // size, size, keys.element_size()))
    sorting = sorting_bytes(values, found) if is_sorted else ()
    positions_bytes = values.numel() * _INT64
    beside_results = (positions_bytes, values.nbytes, sorting, positions_bytes) if sorting else ()
    return TemporaryBytes(after_results=(selecting, beside_results)) if selecting or beside_results else NO_TEMPORARIES


def _counts(slices: int, size: int, element_bytes: int) -> tuple[int, ...]:
    """Return the digit counts of each block and each slice, and the selection state of each slice."""
    if size < next((least for most, least in _MULTIBLOCK_FROM if slices <= most), _MULTIBLOCK_FROM_ELSE):
        return ()
    items = min(max(-(-slices * size // _THREADS_AT_ONCE), _FEWEST_ITEMS), _MOST_ITEMS)
    blocks = slices * -(-size // (items * _THREADS))
    of_slice = 2 * _INT32 + 3 * element_bytes
    return (
        blocks * _DIGITS * _COUNT_BYTES,
        slices * _DIGITS * _INT32,
        blocks * _INT32,
        blocks * _INT32,
        slices * of_slice,
    )
