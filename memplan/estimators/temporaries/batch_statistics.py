"""Sums of a batch over its channels-last images, put together by several thread blocks through memory.

``flexible_launch_configs`` and the kernels that it serves in ``aten/src/ATen/native/cuda/Normalization.cuh`` of torch
2.13. The counters by which thread blocks wait for each other, some bytes, are not counted.
"""

from __future__ import annotations

from memplan.units import ceil_div, power_of_two_up_to

_THREADS, _TILE_CHANNELS = 512, 32  # of a thread block
_VALUES_PER_THREAD = 16
_LEAST_BLOCKS, _MOST_BLOCKS = 8, 128  # that share the values of one channel
_NUMBER_BYTES = 4


def channel_sums(channels: int, values_per_channel: int, numbers: int) -> tuple[int]:
    """Return the bytes of the numbers that thread blocks leave for each channel; 0 where each has one of its own."""
    if not channels or not values_per_channel:
        return (0,)
    width = min(power_of_two_up_to(channels), _TILE_CHANNELS)
    height = min(power_of_two_up_to(ceil_div(values_per_channel, _VALUES_PER_THREAD)), _THREADS // width)
    blocks = min(ceil_div(values_per_channel, height * _VALUES_PER_THREAD), _MOST_BLOCKS)
    return (numbers * channels * blocks * _NUMBER_BYTES if blocks >= _LEAST_BLOCKS else 0,)
