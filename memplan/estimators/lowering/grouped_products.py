"""Matrix products in groups of different sizes (``_grouped_mm``), as the experts of a mixture use them.

In bfloat16 cards of compute capability 9 and 10 run one kernel of CUTLASS for all groups. It gets a table of operands
and a workspace of descriptors for each multiprocessor. All other products run one after another on cuBLAS
(``aten/src/ATen/native/cuda/GroupedBlas.cpp`` and ``GroupMM.cu``). How many descriptors the kernels take is what
PyTorch 2.14 allocates.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes

if TYPE_CHECKING:
    from memplan.estimators.lowering.temporary_bytes import Rule

GROUPED_PRODUCT = "aten._grouped_mm"
_WITH_ONE_KERNEL = (9, 10)  # major compute capabilities
_POINTER_BYTES, _POINTERS, _SHAPE_BYTES, _STRIDES_BYTES = 8, 3, 12, 24  # two operands and the result; of each group
_DESCRIPTOR_BYTES = 128
_DESCRIPTORS_ON_HOPPER = 4  # of each multiprocessor
_DESCRIPTORS_ALONE, _DESCRIPTORS_IN_PAIRS = 42, 46  # on Blackwell, where multiprocessors share large products by two
_SMALL_SIDE = 128


def grouped_product_rules(capability: tuple[int, int], multiprocessors: int | None) -> dict[str, Rule]:
    """Return the rule by operator name without overload.

    Args:
        capability: compute capability of the card.
        multiprocessors: of the card; None where only its memory is known, and the kernel's workspace is not counted.
    """
    return {GROUPED_PRODUCT: partial(_grouped_product, capability=capability, multiprocessors=multiprocessors or 0)}


def runs_in_one_kernel(capability: tuple[int, int], left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether all groups of a product are one kernel's, which takes no workspace of cuBLAS."""
    return capability[0] in _WITH_ONE_KERNEL and left.dtype is right.dtype is torch.bfloat16


def _grouped_product(
    args: tuple[Any, ...], _result: Any, *, capability: tuple[int, int], multiprocessors: int
) -> TemporaryBytes:
    left, right = args[:2]
    if not runs_in_one_kernel(capability, left, right):
        return NO_TEMPORARIES
    groups = len(left) if left.dim() == 3 else len(right if right.dim() == 3 else args[2])
    descriptors = multiprocessors * _descriptors(capability, left, right, groups)
    return TemporaryBytes(after_results=(_table_bytes(groups), descriptors * _DESCRIPTOR_BYTES))


def _table_bytes(groups: int) -> int:
    """Pointers in pairs, so that they are aligned, and shapes and strides."""
    return _POINTERS * _POINTER_BYTES * (groups + groups % 2) + (_SHAPE_BYTES + _STRIDES_BYTES) * groups


def _descriptors(capability: tuple[int, int], left: torch.Tensor, right: torch.Tensor, groups: int) -> int:
    if capability[0] == 9:
        return _DESCRIPTORS_ON_HOPPER
    rows = left.shape[-2] // (groups if left.dim() == 2 and right.dim() == 3 else 1)
    columns = right.shape[-1] // (groups if left.dim() == 3 and right.dim() == 2 else 1)
    return _DESCRIPTORS_ALONE if min(rows, columns) <= _SMALL_SIDE else _DESCRIPTORS_IN_PAIRS
