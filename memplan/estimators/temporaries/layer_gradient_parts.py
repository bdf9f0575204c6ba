"""Sums in parts for the gradients of layer norm's weight and bias, where a card normalises very many, narrow rows.

``LaunchGammaBetaBackwardCUDAKernel`` in ``aten/src/ATen/native/cuda/layer_norm_kernel.cu`` of torch 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.units import ceil_div

if TYPE_CHECKING:
    from memplan.estimators.temporaries.reductions import Reduction

_MANY_ROWS = 64 * 1024
_WARP = 32  # columns of a thread block, and rows that it sums
_MOST_BLOCKS = 32 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGradientParts:
    """How a card sums over rows for one parameter; a rule of ``RuledBlock``.

    Args:
        multiprocessors: of the card.
        sums: how the parts are put together.
    """

    multiprocessors: int
    sums: Reduction

    def __call__(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the bytes of the parts, and those taken to put them together; 0 where rows are few or wide."""
        if rows <= _MANY_ROWS or columns // _WARP >= self.multiprocessors // 2:
            return (0, 0)
        parts = min(_MOST_BLOCKS // ceil_div(columns, _WARP), ceil_div(rows, _WARP))
        return (parts * columns * self.sums.item_bytes, *self.sums(columns, parts))
