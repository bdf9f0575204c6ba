"""Reductions on a card, and the memory in which their thread blocks put partial results together.

PyTorch shares the values of one output among several thread blocks where a thread would have at least 256 of them and
the outputs alone do not fill the card. The partial results go through memory that the kernel takes from the caching
allocator (``setReduceConfig`` and ``global_memory_size`` in ``aten/src/ATen/native/cuda/Reduce.cuh`` of torch 2.13).
Where the innermost dimension of the input is kept, PyTorch asks for ``block_width * outputs_per_thread`` times what is
used: the bias gradient of a linear layer takes up to 108 MiB on an A100.

Where the innermost dimension is reduced, it is some hundred KiB at most, which is not counted; nor are the counters by
which the thread blocks wait for each other, some KiB.
"""

from __future__ import annotations

from dataclasses import dataclass

from memplan.units import ceil_div, power_of_two_up_to

_MOST_THREADS = 512  # of a thread block; complex doubles, which have 256, are not told apart
_WARP = 32
_LEAST_VALUES, _MOST_VALUES = 16, 256  # of one output in a thread
_LEAST_VALUES_ACROSS_WARPS = 16
# Larger inputs are halved until their offsets fit into 32 bits; where the longest dimension is kept, outputs would be
# halved in truth, and not the values of each, as is assumed.
_LARGEST_INDEX_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """How a card reduces, for inputs whose innermost dimension is kept; a rule of ``RuledBlock``.

    Args:
        item_bytes: size of a value.
        accumulator_bytes: size of a partial result.
        outputs_per_thread: neighbouring outputs that one thread works on: 1, 2 or 4.
        multiprocessors: of the card.
        threads_per_multiprocessor: threads that each of them holds at once.
    """

    item_bytes: int
    accumulator_bytes: int
    outputs_per_thread: int
    multiprocessors: int
    threads_per_multiprocessor: int

    def __call__(self, outputs: int, values_per_output: int) -> tuple[int]:
        """Return the bytes that the partial results take; 0 where each output has a thread block of its own.

        Args:
            outputs: how many results there are.
            values_per_output: how many values are reduced to each.
        """
        if not outputs:
            return (0,)
        values = values_per_output
        while values > 1 and outputs * values * self.item_bytes > _LARGEST_INDEX_BYTES:
            values = ceil_div(values, 2)
        columns = outputs // self.outputs_per_thread
        width, height = self._block(columns, values)
        if values < min(height * _LEAST_VALUES_ACROSS_WARPS, _MOST_VALUES):
            return (0,)
        values_per_thread = ceil_div(values, height)
        grid = ceil_div(columns, width)
        full_grid = self.multiprocessors * (self.threads_per_multiprocessor // (width * height))
        if values_per_thread < _MOST_VALUES or grid > full_grid:
            return (0,)
        wanted = min(ceil_div(full_grid, grid), ceil_div(values_per_thread, _LEAST_VALUES))
        shares = max(wanted, ceil_div(values_per_thread, _MOST_VALUES))
        partial_results = outputs * shares * width * self.outputs_per_thread
        return (self.accumulator_bytes * partial_results if shares > 1 else 0,)

    def _block(self, columns: int, values: int) -> tuple[int, int]:
        """Return how many outputs, and how many values of each, the threads of a block begin with."""
        most = _MOST_THREADS // self.outputs_per_thread
        columns, values = power_of_two_up_to(min(columns, most)), power_of_two_up_to(min(values, most))
        height = min(values, most // min(columns, _WARP))
        return min(columns, most // height), height
