"""What CUB's radix sorts take beside their operands: histograms, what blocks tell each other, and second pairs.

Sources are ``cub/device/dispatch/dispatch_radix_sort.cuh`` and ``tuning/tuning_radix_sort.cuh`` beside it, of CUDA
13.0's CCCL. PyTorch counts elements in 64 bits (``radix_sort_pairs_impl`` in ``aten/src/ATen/cuda/cub.cu``).
"""

from __future__ import annotations

from dataclasses import dataclass

from memplan.units import ceil_div

_BITS_OF_A_PASS = 8
_DIGITS = 1 << _BITS_OF_A_PASS
_OFFSET_BYTES, _COUNTER_BYTES = 8, 4
_ALIGNMENT = 256  # ``AliasTemporaries`` in ``util_temporary_storage.cuh``
_SORTED_BY_ONE_BLOCK = 256, 19  # ``SingleTilePolicy``: threads, and elements of four bytes for each
_SHARED_BYTES = 48 * 1024  # ``max_smem_per_block``
_WARP = 32
# Threads, and elements of four bytes for each, of keys of one and two bytes (``sm90_small_key_tuning``).
_OF_SHORT_KEYS = {1: (512, 19), 2: (512, 19)}
_OF_SHORT_KEYS_WITH_VALUES_OF_EIGHT = {1: (384, 18), 2: (512, 23)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RadixSort:
    """One kind of sort on one generation of cards.

    Args:
        key_bytes: of each key.
        value_bytes: of what is sorted along with each key; 0 for keys alone.
        elements_of_block: that one block of threads sorts in one sweep over all; 0 where the card sorts such keys by
            two kernels for each pass, whose histograms depend on how many blocks fit a multiprocessor and are not
            counted.
    """

    key_bytes: int
    value_bytes: int
    elements_of_block: int

    def size_bytes(self, count: int, bits: int) -> int:
        """Return the bytes of one sort's temporary storage.

        Args:
            count: elements.
            bits: of the keys that are looked at.
        """
        if count <= _elements(*_SORTED_BY_ONE_BLOCK, max(self.key_bytes, self.value_bytes)):
            return 1
        if not self.elements_of_block:
            return self.pairs_bytes(count)
        passes = ceil_div(bits, _BITS_OF_A_PASS)
        blocks = ceil_div(count, self.elements_of_block)
        histograms, told = passes * _DIGITS * _OFFSET_BYTES, blocks * _DIGITS * _COUNTER_BYTES
        second = self._pairs(count) if passes > 1 else ()
        return _placed((histograms, told, *second, passes * _COUNTER_BYTES))

    def pairs_bytes(self, count: int) -> int:
        """Return the bytes of a sort that takes second pairs alone, as one of segments does."""
        return _placed(self._pairs(count))

    def _pairs(self, count: int) -> tuple[int, int]:
        return count * self.key_bytes, count * self.value_bytes


def radix_sort(capability: tuple[int, int], key_bytes: int, value_bytes: int) -> RadixSort:
    """Return the sort that a card of a compute capability runs (``policy_hub``)."""
    nominal = _nominal_block(capability, key_bytes, value_bytes)
    elements = _elements(*nominal, max(key_bytes, value_bytes)) if nominal else 0
    return RadixSort(key_bytes=key_bytes, value_bytes=value_bytes, elements_of_block=elements)


def _nominal_block(capability: tuple[int, int], key_bytes: int, value_bytes: int) -> tuple[int, int] | None:
    """Return threads and elements of four bytes for each; None without a sort in one sweep."""
    has_short_keys = key_bytes < 4
    if capability >= (9, 0):
        if has_short_keys:
            return (_OF_SHORT_KEYS_WITH_VALUES_OF_EIGHT if value_bytes else _OF_SHORT_KEYS)[key_bytes]
        if key_bytes == 8:
            return 384, 24 if value_bytes == 8 else 30
        return 384, {0: 19, 8: 29}.get(value_bytes, 17)
    if has_short_keys:
        return None
    if capability >= (8, 0):
        return 384, 17 if key_bytes == 4 and value_bytes else 21
    return 256, 46 if key_bytes == value_bytes == 4 else 23


def _elements(threads: int, nominal: int, item_bytes: int) -> int:
    """Return how many elements a block sorts (``RegBoundScaling`` in ``cub/util_arch.cuh``)."""
    of_thread = max(1, nominal * 4 // max(4, item_bytes))
    fitting = ceil_div(_SHARED_BYTES // (item_bytes * of_thread), _WARP) * _WARP
    return min(threads, fitting) * of_thread


def _placed(parts: tuple[int, ...]) -> int:
    """Return the bytes of one block that holds several parts."""
    return sum(ceil_div(each, _ALIGNMENT) * _ALIGNMENT for each in parts) + _ALIGNMENT - 1
