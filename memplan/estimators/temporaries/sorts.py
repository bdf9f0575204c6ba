"""Blocks of CUDA's sorts and of what is made of them, by lengths alone.

CUB sorts pairs with a buffer of the same size (``DeviceRadixSort::SortPairs`` does not overwrite its input), in the
order of ``radix_sorts``. Other sources are in ``aten/src/ATen/native/cuda`` of torch 2.13.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.units import ceil_div

if TYPE_CHECKING:
    from memplan.estimators.temporaries.radix_sorts import RadixSort

_INT64, _INT32, _FP32 = 8, 4, 4
LARGEST_SORTED_IN_PLACE = 4096  # ``should_use_small_sort`` in ``Sort.h``
_FEWEST_SORTED_ONE_BY_ONE = 1_000_000
_FEWEST_SEGMENTS_SORTED_AS_SUCH = 128
# of ``topk`` (``TensorTopK.cu``)
_COUNT_BYTES = 2
_DIGITS = 256
_THREADS = 256
_FEWEST_ITEMS, _MOST_ITEMS = 4, 64  # of each thread
_THREADS_AT_ONCE = 132 * 6 * _THREADS  # six blocks, of 40 registers a thread, on each multiprocessor of an H100
# (slices, elements): several blocks read a slice of at least so many elements, of up to so many slices
# (``should_use_multiblock``).
_MULTIBLOCK_FROM = ((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800))
_MULTIBLOCK_FROM_ELSE = 400
# of gradients of embeddings (``EmbeddingBackwardKernel.cu``)
_INDICES_OF_A_PARTIAL_SUM = 10  # ``NROWS_PER_THREAD``
_SUMS_PER_ROW = 4  # at least, of tables that are added to in place
_BITS_OF_A_BYTE = 8
_OF_DIFFERENT_KEYS = -12 * math.log(0.9)  # ``randperm_out_cuda``: all keys of a permutation differ by nine tenths


@dataclass(frozen=True, slots=True, kw_only=True)
class SortOfSlices:
    """Blocks of a sort of slices beside its results (``SortStable.cu``); none of up to 4096 elements.

    Args:
        of_pairs: sorts keys with positions, or with positions and segments.
    """

    of_pairs: RadixSort

    def __call__(self, segments: int, size: int) -> tuple[int, ...]:
        """Return positions, these again with their segments, sorted keys, and what the sort takes."""
        key_bytes, elements = self.of_pairs.key_bytes, segments * size
        if size <= LARGEST_SORTED_IN_PLACE:
            return 0, 0, 0, 0
        if segments == 1 or size >= _FEWEST_SORTED_ONE_BY_ONE:
            return size * _INT64, 0, 0, self._size_bytes(size)
        if segments < _FEWEST_SEGMENTS_SORTED_AS_SUCH:
            return elements * _INT64, elements * _INT64, elements * key_bytes, self._size_bytes(elements)
        return elements * _INT64, 0, 0, self.of_pairs.pairs_bytes(elements)

    def _size_bytes(self, count: int) -> int:
        return self.of_pairs.size_bytes(count, self.of_pairs.key_bytes * _BITS_OF_A_BYTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortOfKeys:
    """The block that a sort of keys takes, by all of their bits.

    Args:
        of_keys: sorts them, alone or with other values.
    """

    of_keys: RadixSort

    def __call__(self, count: int) -> tuple[int]:
        """Return what the sort takes."""
        return (self.of_keys.size_bytes(count, self.of_keys.key_bytes * _BITS_OF_A_BYTE),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortByRandomKeys:
    """Blocks of a permutation beside its result (``Randperm.cu``).

    Args:
        by_narrow: sorts by keys of 32 bits.
        by_wide: sorts by keys of 64 bits.
    """

    by_narrow: RadixSort
    by_wide: RadixSort

    def __call__(self, count: int) -> tuple[int, ...]:
        """Return what is permuted, keys, sorted keys, and what the sort takes.

        There are as many bits as make it likely that all keys differ.
        """
        bits = min(math.ceil(math.log2(count + (6 * count * count + 1) / _OF_DIFFERENT_KEYS)), 64) if count else 0
        sort = self.by_narrow if bits <= 32 else self.by_wide
        return (
            count * sort.value_bytes, count * sort.key_bytes, count * sort.key_bytes,
            sort.size_bytes(count, bits) if count else 0,
        )  # fmt: skip


def digit_counts(slices: int, size: int, key_bytes: int) -> tuple[int, ...]:
    """Return the digit counts of each block and slice, two numbers of each block, and the state of each slice."""
    if not slices or size < next((least for most, least in _MULTIBLOCK_FROM if slices <= most), _MULTIBLOCK_FROM_ELSE):
        return 0, 0, 0, 0, 0
    items = min(max(ceil_div(slices * size, _THREADS_AT_ONCE), _FEWEST_ITEMS), _MOST_ITEMS)
    blocks = slices * ceil_div(size, items * _THREADS)
    of_slice = 2 * _INT32 + 3 * key_bytes
    return (
        blocks * _DIGITS * _COUNT_BYTES, slices * _DIGITS * _INT32, blocks * _INT32, blocks * _INT32, slices * of_slice,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SortOfPlaces:
    """The block that the sort of indices takes which tell places of a tensor apart.

    Args:
        of_indices: sorts indices with their positions.
    """

    of_indices: RadixSort

    def __call__(self, count: int, places: int) -> tuple[int]:
        """Return what the sort takes, which looks at the bits of the last place (``Indexing.cu``)."""
        return (self.of_indices.size_bytes(count, max((places - 1).bit_length(), 1)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortOfIndices:
    """Blocks of the sort of indices before what belongs to equal ones is added up.

    Args:
        of_indices: sorts indices with their positions.
        counts_each: whether it is counted how often each index occurs.
        most_at_once: so many gradients are added up without a sort.
    """

    of_indices: RadixSort
    counts_each: bool
    most_at_once: int

    def __call__(self, count: int, rows: int) -> tuple[int, ...]:
        """Return sorted and original indices, what these are made of, what the sort takes, and counts of each."""
        if count <= self.most_at_once:
            return 0, 0, 0, 0, 0
        each_bytes = count * self.of_indices.key_bytes
        sort_bytes = self.of_indices.size_bytes(count, rows.bit_length())
        return each_bytes, each_bytes, each_bytes, sort_bytes, each_bytes if self.counts_each else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsByIndex:
    """Blocks of sums of gradients that belong to equal indices (``EmbeddingBackwardKernel.cu``).

    Args:
        index_bytes: of an index.
        most_at_once: so many gradients are added up without such sums.
        most_rows: of tables that are added to in place; 0 where none are.
    """

    index_bytes: int
    most_at_once: int
    most_rows: int

    def __call__(self, count: int, rows: int, width: int, number_bytes: int) -> tuple[int, ...]:
        """Return segments of equal indices, and partial sums of ten gradients each, in at least single precision.

        Or, where a table has few rows and each of them many partial sums, sums in place, which for half types are in
        single precision. That choice was found by trying sizes.
        """
        if count <= self.most_at_once:
            return 0, 0, 0, 0, 0, 0, 0, 0
        segments = min(count, rows)
        partials = count // _INDICES_OF_A_PARTIAL_SUM + segments
        each_bytes, of_segments, places_bytes = (each * self.index_bytes for each in (count, segments, partials))
        common = each_bytes, each_bytes, of_segments, of_segments, places_bytes
        if segments <= self.most_rows and partials >= _SUMS_PER_ROW * segments:
            return *common, places_bytes, rows * width * _FP32 if number_bytes < _FP32 else 0, 0
        return *common, 0, 0, partials * width * max(number_bytes, _FP32)
