"""Temporaries of CUDA's sorts, and of kernels that sort, for calls; ``temporaries.sorts`` has them by lengths alone."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.lowering.composite_temporaries import INDEXED_WRITES, selected_positions, sorts_places
from memplan.estimators.lowering.contiguous_copies import copies
from memplan.estimators.lowering.determinism import prefers_deterministic
from memplan.estimators.lowering.temporary_bytes import INT64_BYTES, NO_TEMPORARIES, TemporaryBytes
from memplan.estimators.temporaries.radix_sorts import radix_sort
from memplan.estimators.temporaries.ruled_blocks import ruled_blocks
from memplan.estimators.temporaries.sorts import (
    LARGEST_SORTED_IN_PLACE,
    SortByRandomKeys,
    SortOfKeys,
    SortOfPlaces,
    SortOfSlices,
    digit_counts,
)

if TYPE_CHECKING:
    from memplan.estimators.lowering.temporary_bytes import Blocks, Rule
    from memplan.estimators.temporaries.ruled_blocks import RuledBlock

    Capability = tuple[int, int]

_SCATTERS = ("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_")
_SUMMING = ("sum", "mean", "add")
_MOST_COUNTED_AT_ONCE = 2048  # of a row, by one block of threads


def sort_rules(capability: Capability) -> dict[str, Rule]:
    """Return the rules by operator name without overload.

    Args:
        capability: compute capability of the card.
    """
    median = partial(_median, capability=capability)
    put, scatter = (partial(each, capability=capability) for each in (_sorted_index_put, _scatter))
    add, copy = (partial(each, capability=capability) for each in (_index_add, _index_copy))
    return {
        "aten.sort": partial(_sort, capability=capability),
        "aten.topk": partial(_topk, capability=capability),
        "aten.randperm": partial(_randperm, capability=capability),
        **dict.fromkeys(("aten.median", "aten.nanmedian"), median),
        "aten.mode": _mode,
        "aten._unique2": partial(_unique, capability=capability),
        "aten.multinomial": partial(_multinomial, capability=capability),
        **dict.fromkeys((f"aten.{name}" for name in INDEXED_WRITES), put),
        **dict.fromkeys((f"aten.{name}" for name in _SCATTERS), scatter),
        **dict.fromkeys(("aten.index_add", "aten.index_add_"), add),
        **dict.fromkeys(("aten.index_copy", "aten.index_copy_"), copy),
    }


def _sort(args: tuple[Any, ...], _result: Any, *, capability: Capability) -> TemporaryBytes:
    """Return the temporaries of a sort along a dimension (``Sort.cpp``, ``SortStable.cu``).

    Args:
        args: keys and dimension; between them whether the sort is stable, if that is said.
        _result: sorted keys and positions.
        capability: compute capability of the card.
    """
    keys: torch.Tensor = args[0]
    dim = next((each for each in args[1:3] if isinstance(each, int) and not isinstance(each, bool)), -1)
    if not keys.dim():
        return NO_TEMPORARIES
    size, position_bytes = keys.shape[dim], keys.numel() * INT64_BYTES
    if size <= LARGEST_SORTED_IN_PLACE:
        return TemporaryBytes(after_results=(size * INT64_BYTES,))
    in_order = () if keys.stride(dim) == 1 else (keys.nbytes, keys.nbytes, position_bytes)
    return TemporaryBytes(after_results=(*in_order, *_sorting(keys, size, capability)))


def _sorting(keys: torch.Tensor, size: int, capability: Capability) -> tuple[RuledBlock, ...]:
    rule = SortOfSlices(of_pairs=radix_sort(capability, keys.element_size(), INT64_BYTES))
    return ruled_blocks(rule, keys.numel() // max(size, 1), size)


def _randperm(_args: tuple[Any, ...], result: torch.Tensor, *, capability: Capability) -> TemporaryBytes:
    """Sort positions by random keys, which are wider where many might be equal (``Randperm.cu``)."""
    narrow, wide = (radix_sort(capability, key_bytes, result.element_size()) for key_bytes in (4, INT64_BYTES))
    return TemporaryBytes(after_results=ruled_blocks(SortByRandomKeys(by_narrow=narrow, by_wide=wide), result.numel()))


def _median(args: tuple[Any, ...], _result: Any, *, capability: Capability) -> TemporaryBytes:
    """A sort of all elements (``median_impl`` in ``cuda/Sorting.cpp``); along a dimension a contiguous copy."""
    source: torch.Tensor = args[0]
    copied = copies((source,))
    if len(args) > 1:
        return TemporaryBytes(after_results=copied)
    count = source.numel()
    return TemporaryBytes(
        before_results=(*copied, source.nbytes, count * INT64_BYTES, *_sorting(source, count, capability))
    )


def _mode(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
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


def _unique(args: tuple[Any, ...], _result: Any, *, capability: Capability) -> TemporaryBytes:
    """Sorted elements, with their positions if the inverse is returned (``UniqueCub.cu``)."""
    source: torch.Tensor = args[0]
    copied, key_bytes = copies((source,)), source.element_size()
    remembers = len(args) > 2 and bool(args[2])
    rule = SortOfKeys(of_keys=radix_sort(capability, key_bytes, INT64_BYTES if remembers else 0))
    sorting = ruled_blocks(rule, source.numel())
    if not remembers:
        return TemporaryBytes(around_results=(*copied, source.nbytes, sorting))
    places_bytes = source.numel() * INT64_BYTES
    return TemporaryBytes(around_results=(*copied, source.nbytes, places_bytes, (places_bytes, *sorting), places_bytes))


def _sorted_index_put(args: tuple[Any, ...], _result: Any, *, capability: Capability) -> TemporaryBytes:
    """Linear, sorted, original and running indices (``index_put_with_sort_kernel`` in ``Indexing.cu``).

    Values that are broadcast or not contiguous are copied. Up to 256 places are told apart by eight bits, and CUB sorts
    by these in one pass, which needs no second pairs (``dispatch_radix_sort.cuh``).
    """
    if not sorts_places(args):
        return NO_TEMPORARIES
    source, indices, values = args[:3]
    positions = selected_positions(source, indices, values)
    elements = positions * (source.numel() // max(_indexed_elements(source, indices), 1))
    is_read_as_it_is = values.numel() == elements and values.is_contiguous()
    copied = () if is_read_as_it_is else (elements * values.element_size(),)
    each_bytes = positions * INT64_BYTES
    rule = SortOfPlaces(of_indices=radix_sort(capability, INT64_BYTES, INT64_BYTES))
    sorting = ruled_blocks(rule, positions, _places(source, indices))
    return TemporaryBytes(after_results=(each_bytes, *copied, each_bytes, each_bytes, (each_bytes, *sorting)))


def _scatter(args: tuple[Any, ...], _result: Any, *, capability: Capability) -> TemporaryBytes:
    """To repeat its results, a scatter of a tensor is a write by indices of all dimensions.

    The others are numbered first. An index that is the same along all others stands alone (``_scatter_via_index_put``
    in ``TensorAdvancedIndexing.cpp``).
    """
    target, dim, index, values = args[:4]
    is_summed = len(args) < 5 or args[4] in _SUMMING
    if not (prefers_deterministic() and isinstance(values, torch.Tensor) and is_summed):
        return NO_TEMPORARIES
    dim %= max(index.dim(), 1)
    others = [each for each in range(index.dim()) if each != dim]
    values = values.as_strided(index.shape, values.stride())
    if all(index.stride(each) == 0 for each in others):
        for each in reversed(others):
            index = index.select(each, 0)
        return _sorted_index_put((target, [None] * dim + [index], values, True), None, capability=capability)
    put = _sorted_index_put((target, [index] * index.dim(), values, True), None, capability=capability)
    numbered = tuple(index.shape[each] * index.element_size() for each in others)
    return TemporaryBytes(after_results=(*numbered, *put.after_results))


def _index_add(args: tuple[Any, ...], _result: Any, *, capability: Capability) -> TemporaryBytes:
    """To repeat its results, an addition by index is a write of scaled values (``index_add_cuda_impl``)."""
    if not prefers_deterministic():
        return NO_TEMPORARIES
    target, dim, index, values = args[:4]
    put = _sorted_index_put((target, [None] * dim + [index], values, True), None, capability=capability)
    return TemporaryBytes(after_results=(values.nbytes, *put.after_results))


def _index_copy(args: tuple[Any, ...], _result: Any, *, capability: Capability) -> TemporaryBytes:
    """To repeat its results, a copy by index is a write by indices (``index_copy_out``)."""
    target, dim, index, values = args[:4]
    return _sorted_index_put((target, [None] * dim + [index], values), None, capability=capability)


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


def _topk(args: tuple[Any, ...], result: Any, *, capability: Capability) -> TemporaryBytes:
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
    beside_results = (positions_bytes, values.nbytes, _sorting(values, found, capability), positions_bytes)
    return TemporaryBytes(after_results=(selecting, beside_results))


def _multinomial(args: tuple[Any, ...], result: Any, *, capability: Capability) -> TemporaryBytes:
    """A random number per weight, and the largest of these, if several are drawn (``Distributions.cpp``).

    If these are drawn with replacement, the weights, their normalised copy and its prefix sum
    (``MultinomialKernel.cu``).
    """
    weights: torch.Tensor = args[0]
    if args[1] == 1:
        return TemporaryBytes(after_results=(weights.nbytes,))
    if len(args) > 2 and args[2]:
        return TemporaryBytes(after_results=(weights.nbytes,) * 3)
    largest = weights.new_empty(result.shape)
    choosing = _topk((weights, args[1]), (largest, result), capability=capability).after_results
    return TemporaryBytes(after_results=(weights.nbytes, largest.nbytes, *choosing))
