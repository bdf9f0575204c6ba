"""Temporaries of CUDA's sorts, and of kernels that sort.

CUB sorts pairs with a buffer of the same size (``DeviceRadixSort::SortPairs`` does not overwrite its input). Its
histograms, of some kilobytes, are not counted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.composite_temporaries import selected_positions
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes

if TYPE_CHECKING:
    import torch

_INT64, _INT32 = 8, 4
_LARGEST_SORTED_IN_PLACE = 4096  # ``should_use_small_sort`` in ``Sort.h``
_FEWEST_SORTED_ONE_BY_ONE = 1_000_000
_FEWEST_SEGMENTS_SORTED_AS_SUCH = 128
_MOST_NARROW_KEYS = 30_083  # ``bits <= 32`` in ``randperm_out_cuda``
_FEW_EMBEDDINGS = 3072
_INDICES_OF_A_PARTIAL_SUM = 10  # ``NROWS_PER_THREAD``
_MAX_MODE = 2  # ``EmbeddingBagMode::MAX``
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

    The dimension of a stable sort is not among the positional arguments; the last is assumed.
    """
    keys: torch.Tensor = args[0]
    dim = args[1] if len(args) > 1 else -1
    if not keys.dim() or keys.shape[dim] <= _LARGEST_SORTED_IN_PLACE:
        return NO_TEMPORARIES
    in_order = 0 if keys.stride(dim) == 1 else 2 * keys.nbytes + keys.numel() * _INT64
    return TemporaryBytes(after_results=in_order + sorting_bytes(keys, keys.shape[dim]))


def sorting_bytes(keys: torch.Tensor, size: int) -> int:
    """Return the bytes of a sort of slices beside its results: 0 for slices of up to 4096 elements."""
    if size <= _LARGEST_SORTED_IN_PLACE:
        return 0
    segments = keys.numel() // size
    pair_bytes = keys.element_size() + _INT64
    if segments == 1 or size >= _FEWEST_SORTED_ONE_BY_ONE:
        return size * (_INT64 + pair_bytes)
    if segments < _FEWEST_SEGMENTS_SORTED_AS_SUCH:  # positions with their segments twice, and sorted keys
        return keys.numel() * (2 * _INT64 + keys.element_size() + pair_bytes)
    return keys.numel() * (_INT64 + pair_bytes)


def permutation(_args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """Sort positions by random keys, which are wider where many might be equal (``Randperm.cu``)."""
    count = result.numel()
    key_bytes = 4 if count <= _MOST_NARROW_KEYS else _INT64
    positions_and_keys = result.nbytes + 2 * count * key_bytes
    return TemporaryBytes(after_results=positions_and_keys + count * (key_bytes + result.element_size()))


def median(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """A sort of all elements (``median_impl`` in ``cuda/Sorting.cpp``); along a dimension a contiguous copy."""
    source: torch.Tensor = args[0]
    copied = 0 if source.is_contiguous() else source.nbytes
    if len(args) > 1:
        return TemporaryBytes(after_results=copied)
    count = source.numel()
    return TemporaryBytes(before_results=copied + source.nbytes + count * _INT64 + sorting_bytes(source, count))


def unique(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Sorted elements, with their positions if the inverse is returned (``UniqueCub.cu``)."""
    source: torch.Tensor = args[0]
    copied = 0 if source.is_contiguous() else source.nbytes
    positions = source.numel() * _INT64 if len(args) > 2 and args[2] else 0
    return TemporaryBytes(
        before_results=source.nbytes + 2 * positions, around_results=copied + source.nbytes + positions
    )


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
    copied = 0 if is_read_as_it_is else elements * values.element_size()
    return TemporaryBytes(after_results=6 * positions * _INT64 + copied)


def _indexed_elements(source: torch.Tensor, indices: list[torch.Tensor | None]) -> int:
    place = 0
    sizes: list[int] = []
    for each in indices:
        taken = each.dim() if each is not None and not each.dtype.is_signed else 1  # masks and bytes
        if each is not None:
            sizes += source.shape[place : place + taken]
        place += taken
    return math.prod(sizes)


def embedding_backward(args: tuple[Any, ...], result: Any) -> TemporaryBytes:
    """Return the temporaries of ``embedding_dense_backward_cuda`` in ``Embedding.cu``."""
    indices: torch.Tensor = args[1]
    by_frequency = len(args) > 4 and bool(args[4])
    if indices.numel() <= _FEW_EMBEDDINGS and not by_frequency:
        return NO_TEMPORARIES
    return _summed_by_index(indices, result, by_frequency=by_frequency)


def embedding_bag_backward(args: tuple[Any, ...], result: Any) -> TemporaryBytes:
    """Return the temporaries of ``embedding_bag_backward_cuda_sum_avg`` in ``EmbeddingBag.cu``; maxima have none."""
    by_frequency, mode, is_sparse = args[7:10]
    if mode == _MAX_MODE or is_sparse:
        return NO_TEMPORARIES
    return _summed_by_index(args[1], result, by_frequency=by_frequency)


def _summed_by_index(indices: torch.Tensor, gradient: torch.Tensor, *, by_frequency: bool) -> TemporaryBytes:
    """Sorted indices, segments of equal ones, and partial sums of ten gradients each, in at least fp32.

    ``embedding_backward_cuda_kernel`` in ``EmbeddingBackwardKernel.cu``. For a table of few rows, newer versions add
    in place, which needs less.
    """
    count, (rows, width) = indices.numel(), gradient.shape
    segments = min(count, rows)
    partials = count // _INDICES_OF_A_PARTIAL_SUM + segments
    running = count + 2 * segments + partials
    sums = partials * width * max(gradient.element_size(), 4)
    return TemporaryBytes(
        before_results=3 * indices.nbytes,
        around_results=(3 if by_frequency else 2) * indices.nbytes,
        after_results=running * indices.element_size() + sums,
    )


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
    copied = 0 if keys.is_contiguous() else keys.nbytes
    selecting = copied + _counts_bytes(keys.numel() // size, size, keys.element_size())
    sorting = sorting_bytes(values, found) if is_sorted else 0
    beside_results = values.nbytes + values.numel() * _INT64 + sorting if sorting else 0
    return TemporaryBytes(after_results=max(selecting, beside_results))


def _counts_bytes(slices: int, size: int, element_bytes: int) -> int:
    """Digit counts of each block and each slice, and the selection state of each slice."""
    if size < next((least for most, least in _MULTIBLOCK_FROM if slices <= most), _MULTIBLOCK_FROM_ELSE):
        return 0
    items = min(max(-(-slices * size // _THREADS_AT_ONCE), _FEWEST_ITEMS), _MOST_ITEMS)
    blocks = slices * -(-size // (items * _THREADS))
    of_slice = element_bytes + 2 * _INT32 + 2 * element_bytes + _DIGITS * _INT32
    return blocks * (_DIGITS * _COUNT_BYTES + 2 * _INT32) + slices * of_slice
