"""What Hopper's convolutions take to sum the last tiles of their output by parts.

These kernels run in clusters of thread blocks, one block on a multiprocessor. Tiles that would leave most of the card
idle are divided along the sum, so that the parts fill it; each part is summed in a buffer of its own, and parts are
added in pairs, pairs in pairs, and so on ("Stream-K", Osama et al. 2023). How many clusters run at once cuDNN asks the
card; without one it presumes a group of 18 multiprocessors, and tells other workspaces.

The sizes were read off what 117 convolutions and four nets took on an H100 (``benchmarks/truth``, cuDNN 9.19), and give
448 of cuDNN's own answers for that group of 18 to the byte. Into how many parts a sum is divided is a weighing of time
whose terms are not known: it is approximated by a cost of each addition of pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.estimators.temporaries.convolutions import Pass

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

_ACCUMULATOR_BYTES = _COUNTER_BYTES = 4  # sums are kept in single precision
_STEP_BYTES = 128  # of one row or column of an operand, which a block takes in at a time
_ALIGNMENT_BYTES = 127  # by which counters may have to be moved
_FIXED_COUNTERS = 8
_MOST_FIXED_WAVES = 2  # in which it is settled beforehand which block computes which tile
_CONVERSION_BYTES = 16  # beside the copies that a kernel for other strides makes
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

# Clusters by their blocks, as many as run at once on an H100. Of larger ones fewer than would fill it, since each stays
# within one of its groups of multiprocessors: recorded are 39 of three, 30 of four and 15 of eight.
_AT_ONCE = {1: 132, 2: 66, 3: 39, 4: 30, 8: 15}
_SM_COUNT_THERE = 132
_PRESUMED_SM_COUNT = 18
_MOST_PARTS = 132

# What adding pairs costs, in steps of a sum: behind full waves of tiles, and where all tiles are divided.
_LARGE_TILE = 128 * 128
_COST_OF_SPLITTING = 2.6
_COSTS = {(True, True): 4.4, (True, False): 12.0, (False, True): 30.0, (False, False): 30.0}  # single precision, large
_COST_WITHOUT_WAVES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterKernel:
    """How a kernel covers its output.

    Args:
        tile: rows and columns of the output that a thread block sums.
        cluster: rows and columns of thread blocks that form a cluster.
        may_divide: whether it may divide its last tiles.
    """

    tile: tuple[int, int]
    cluster: tuple[int, int]
    may_divide: bool

    @property
    def cluster_blocks(self) -> int:
        """Thread blocks of a cluster."""
        return math.prod(self.cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waves:
    """How a kernel's clusters come to lie on a card: in full waves, and what is left of them."""

    full: int
    left: int
    at_once: int

    @classmethod
    def of(cls, convolution: Convolution, kernel: ClusterKernel, at_once: int) -> _Waves:
        rows, columns, _ = _as_product(convolution)
        clusters = math.ceil(rows / kernel.tile[0] / kernel.cluster[0])
        clusters *= math.ceil(columns / kernel.tile[1] / kernel.cluster[1])
        full, left = divmod(clusters, at_once)
        return cls(full=full, left=left, at_once=at_once)

    @property
    def most_parts(self) -> int:
        return self.at_once // self.left if self.left else 1

    def parts_bytes(self, kernel: ClusterKernel, parts: int) -> int:
        """Return what so many parts of each tile that is left take beside conversions."""
        counters = 1 if self.full + (self.left > 0) > _MOST_FIXED_WAVES else 0  # from which blocks draw their next tile
        tiles = self.left * kernel.cluster_blocks
        if parts > 1:
            counters += _FIXED_COUNTERS + tiles * _additions(parts)
        sums = tiles * parts * math.prod(kernel.tile) * _ACCUMULATOR_BYTES if parts > 1 else 0
        return sums + (_ALIGNMENT_BYTES + counters * _COUNTER_BYTES if counters else 0)


def workspace_on_card(convolution: Convolution, kernel: ClusterKernel, sm_count: int, *, told_bytes: int) -> int | None:
    """Return the workspace on a card of what cuDNN tells without one; None where the rule is not known to hold.

    That is where convolutions are grouped, where it is not known how many clusters run at once, or where what is told
    is not what the rule says of the multiprocessors that cuDNN presumes.

    Args:
        convolution: the call.
        kernel: by which it runs.
        sm_count: multiprocessors of the card.
        told_bytes: its workspace, as told.
    """
    there = _AT_ONCE.get(kernel.cluster_blocks)
    is_grouped = convolution.input_shape[1] != convolution.weight_shape[1]
    if there is None or convolution.dtype not in _ITEM_BYTES or is_grouped:
        return None
    presumed = _Waves.of(convolution, kernel, _PRESUMED_SM_COUNT // kernel.cluster_blocks)
    beside_bytes = told_bytes - _conversions_bytes(convolution)
    if beside_bytes not in {presumed.parts_bytes(kernel, each + 1) for each in range(_PRESUMED_SM_COUNT)}:
        return None
    waves = _Waves.of(convolution, kernel, sm_count * there // _SM_COUNT_THERE)
    parts = _parts(convolution, kernel, waves) if kernel.may_divide else 1
    return told_bytes - beside_bytes + waves.parts_bytes(kernel, parts)


def _parts(convolution: Convolution, kernel: ClusterKernel, waves: _Waves) -> int:
    """Return into how many parts the sums of the tiles that are left are divided."""
    *_, summed = _as_product(convolution)
    steps = math.ceil(summed * _ITEM_BYTES[convolution.dtype] / _STEP_BYTES)
    is_large = math.prod(kernel.tile) >= _LARGE_TILE
    cost = _COSTS[convolution.dtype == "float32", is_large] * (1 if waves.full else _COST_WITHOUT_WAVES)

    def time(parts: int) -> float:
        return math.ceil(steps / parts) + (_COST_OF_SPLITTING + cost * math.log2(parts) if parts > 1 else 0)

    powers = (1 << exponent for exponent in range(_MOST_PARTS.bit_length()))
    best = min((*(each for each in powers if each <= waves.most_parts), waves.most_parts), key=time)
    return math.ceil(steps / math.ceil(steps / best))


def _additions(parts: int) -> int:
    """Return how many additions of pairs sum so many parts, level by level; one that has no pair counts, too."""
    count = 0
    while parts > 1:
        parts = math.ceil(parts / 2)
        count += parts
    return count


def _conversions_bytes(convolution: Convolution) -> int:
    """Return the copies with channels innermost that these kernels need of tensors laid out otherwise."""
    if convolution.channels_last:
        return 0
    is_window = math.prod(convolution.weight_shape[2:]) > 1  # else both layouts are the same
    shapes = (convolution.input_shape, convolution.output_shape, *((convolution.weight_shape,) if is_window else ()))
    return sum(map(math.prod, shapes)) * _ITEM_BYTES[convolution.dtype] + _CONVERSION_BYTES


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
