"""Blocks of CUDA's sorts and of what is made of them, by lengths alone.

CUB sorts pairs with a buffer of the same size (``DeviceRadixSort::SortPairs`` does not overwrite its input). Its
histograms, of some kilobytes, are not counted. Other sources are in ``aten/src/ATen/native/cuda`` of torch 2.13.
"""

from __future__ import annotations

from memplan.units import ceil_div

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
# of gradients of embeddings (``Embedding.cu``, ``EmbeddingBackwardKernel.cu``)
_FEW_EMBEDDINGS = 3072
_INDICES_OF_A_PARTIAL_SUM = 10  # ``NROWS_PER_THREAD``
_VALUES_OF_A_PASS = 1 << 8  # CUB's radix sort needs no second pairs for one pass (``dispatch_radix_sort.cuh``)
_SUMS_PER_ROW = 4  # at least, of tables that are added to in place


def sorting(segments: int, size: int, key_bytes: int) -> tuple[int, ...]:
    """Return the blocks of a sort of slices beside its results (``SortStable.cu``); none of up to 4096 elements.

    Positions, these again with their segments, sorted keys, and a second pair.
    """
    pair_bytes, elements = key_bytes + _INT64, segments * size
    if size <= LARGEST_SORTED_IN_PLACE:
        return 0, 0, 0, 0
    if segments == 1 or size >= _FEWEST_SORTED_ONE_BY_ONE:
        return size * _INT64, 0, 0, size * pair_bytes
    if segments < _FEWEST_SEGMENTS_SORTED_AS_SUCH:
        return elements * _INT64, elements * _INT64, elements * key_bytes, elements * pair_bytes
    return elements * _INT64, 0, 0, elements * pair_bytes


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


def second_pairs(count: int, places: int) -> tuple[int]:
    """Return the second pairs of the sort of so many indices, which tell places of a tensor apart."""
    return (2 * count * _INT64 if places > _VALUES_OF_A_PASS else 0,)


def sorted_indices(count: int, rows: int, index_bytes: int, by_frequency: int) -> tuple[int, ...]:
    """Return sorted and original indices, what sorts them, and counts of each, for the gradient of an embedding."""
    if count <= _FEW_EMBEDDINGS and not by_frequency:
        return 0, 0, 0, 0, 0
    each_bytes = count * index_bytes
    second_pairs = 2 * each_bytes if rows >= _VALUES_OF_A_PASS else 0
    return each_bytes, each_bytes, each_bytes, second_pairs, each_bytes if by_frequency else 0


def sums_by_index(  # noqa: PLR0917 - the lengths of a rule
    count: int, rows: int, width: int, index_bytes: int, number_bytes: int, most_rows: int, by_frequency: int
) -> tuple[int, ...]:
    """Return segments of equal indices, and partial sums of ten gradients each, in at least single precision.

    Or, where a table has few rows and each of them many partial sums, sums in place, which for half types are in single
    precision. That choice was found by trying sizes.
    """
    if count <= _FEW_EMBEDDINGS and not by_frequency:
        return 0, 0, 0, 0, 0, 0, 0, 0
    segments = min(count, rows)
    partials = count // _INDICES_OF_A_PARTIAL_SUM + segments
    each_bytes, of_segments, places_bytes = count * index_bytes, segments * index_bytes, partials * index_bytes
    common = each_bytes, each_bytes, of_segments, of_segments, places_bytes
    if segments <= most_rows and partials >= _SUMS_PER_ROW * segments:
        return *common, places_bytes, rows * width * _FP32 if number_bytes < _FP32 else 0, 0
    return *common, 0, 0, partials * width * max(number_bytes, _FP32)
