"""What Hopper's convolutions take to sum the last tiles of their output by parts.

These kernels run in clusters of thread blocks, one block on a multiprocessor. Tiles that would leave most of the card
idle are divided along the sum, so that the parts fill it, and each part is summed in a buffer of its own ("Stream-K",
Osama et al. 2023). How many clusters run at once cuDNN asks the card, and without one it tells other workspaces. The
rule was read off the allocator's histories of ResNet-50 and VGG-16 on an H100 (``benchmarks/truth``, cuDNN 9.19), and
meets those of nets that it was not read off. Not counted: the counters of the parts, less than a KiB.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.estimators.temporaries.convolutions import Pass

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

_ACCUMULATOR_BYTES = 4  # sums are kept in single precision
_STEP_BYTES = 128  # of one row or column of an operand, which a block takes in at a time
_LEAST_STEPS = 8  # of a part
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

# Clusters by their blocks, as many as run at once on an H100. Of larger ones fewer than would fill it, since each stays
# within one of its groups of multiprocessors: recorded are 39 of three, 24 to 31 of four and 14 or 15 of eight.
_AT_ONCE = {1: 132, 2: 66, 3: 39, 4: 30, 8: 15}
_SM_COUNT_THERE = 132


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterKernel:
    """How a kernel covers its output.

    Args:
        tile: rows and columns of the output that a thread block sums.
        cluster_blocks: thread blocks of a cluster.
    """

    tile: tuple[int, int]
    cluster_blocks: int


def parts_bytes(convolution: Convolution, kernel: ClusterKernel, sm_count: int) -> int | None:
    """Return what the parts of a convolution's last tiles take; None where the rule is not known to hold.

    That is where convolutions are grouped, or it is not known how many clusters run at once.

    Args:
        convolution: the call.
        kernel: by which it runs.
        sm_count: multiprocessors of the card.
    """
    there = _AT_ONCE.get(kernel.cluster_blocks)
    item_bytes = _ITEM_BYTES.get(convolution.dtype)
    is_grouped = convolution.input_shape[1] != convolution.weight_shape[1]
    if there is None or item_bytes is None or is_grouped:
        return None
    at_once = sm_count * there // _SM_COUNT_THERE
    rows, columns, summed = _as_product(convolution)
    tiles = math.ceil(rows / kernel.tile[0]) * math.ceil(columns / kernel.tile[1])
    clusters = math.ceil(tiles / kernel.cluster_blocks)
    last = clusters if clusters < at_once else clusters % at_once
    steps = math.ceil(summed * item_bytes / _STEP_BYTES)
    parts = min(at_once // last, math.ceil(steps / _LEAST_STEPS)) if last else 1
    return last * parts * kernel.cluster_blocks * math.prod(kernel.tile) * _ACCUMULATOR_BYTES if parts > 1 else 0


def _as_product(convolution: Convolution) -> tuple[int, int, int]:
    """Return rows, columns and the length of the sums of the product of matrices that a pass comes to."""
    outputs, inputs, *window = convolution.weight_shape
    taps = math.prod(window)
    if convolution.kernel is Pass.WEIGHT_GRADIENT:
        return outputs, inputs * taps, _places(convolution.output_shape)
    if convolution.kernel is Pass.FORWARD:
        return _places(convolution.output_shape), outputs, inputs * taps
    return _places(convolution.input_shape), inputs, outputs * taps


def _places(shape: tuple[int, ...]) -> int:
    return shape[0] * math.prod(shape[2:])
