"""Temporaries of CUDA's ``topk`` (``TensorTopK.cu`` and ``.cpp``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.sort_temporaries import sorting_bytes

if TYPE_CHECKING:
    import torch

_INT64 = 8
_INT32 = 4
_COUNT_BYTES = 2
_DIGITS = 256
_THREADS = 256
_FEWEST_ITEMS, _MOST_ITEMS = 4, 64  # of each thread
_THREADS_AT_ONCE = 132 * 6 * _THREADS  # six blocks, of 40 registers a thread, on each multiprocessor of an H100
# (slices, elements): several blocks read a slice of at least so many elements, of up to so many slices
# (``should_use_multiblock``).
_MULTIBLOCK_FROM = ((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800))
_MULTIBLOCK_FROM_ELSE = 400


def top_k_bytes(args: tuple[Any, ...], result: Any) -> int:
    """Return the peak of the temporaries: a contiguous copy and digit counts, or a sort of more than 4096 results.

    The elements per thread depend on the card's multiprocessors; those of an H100 are assumed, and others change the
    digit counts by some hundred KiB.
    """
    keys: torch.Tensor = args[0]
    values: torch.Tensor = result[0]
    dim = args[2] if len(args) > 2 else -1
    is_sorted = len(args) <= 4 or bool(args[4])
    size, found = (keys.shape[dim], values.shape[dim]) if keys.dim() else (1, 1)
    if not size or not found:
        return 0
    copied = 0 if keys.is_contiguous() else keys.nbytes
    selecting = copied + _counts_bytes(keys.numel() // size, size, keys.element_size())
    sorting = sorting_bytes(values, found) if is_sorted else 0
    return max(selecting, values.nbytes + values.numel() * _INT64 + sorting if sorting else 0)


def _counts_bytes(slices: int, size: int, element_bytes: int) -> int:
    """Digit counts of each block and each slice, and the selection state of each slice."""
    if size < next((least for most, least in _MULTIBLOCK_FROM if slices <= most), _MULTIBLOCK_FROM_ELSE):
        return 0
    items = min(max(-(-slices * size // _THREADS_AT_ONCE), _FEWEST_ITEMS), _MOST_ITEMS)
    blocks = slices * -(-size // (items * _THREADS))
    of_slice = element_bytes + 2 * _INT32 + 2 * element_bytes + _DIGITS * _INT32
    return blocks * (_DIGITS * _COUNT_BYTES + 2 * _INT32) + slices * of_slice
