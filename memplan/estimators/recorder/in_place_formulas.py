"""Operators that autograd runs in place where no dispatch mode is active, so that their results take no new memory.

Under a dispatch mode its formulas write nothing in place (``areAnyTensorSubclassLike`` in
``torch/csrc/autograd/FunctionsManual.cpp`` of torch 2.13, where also the formulas are that are named here).
"""

from __future__ import annotations

from typing import Any

import torch

from memplan.estimators.fake_tensors.fake_results import SPARSE_CLONE
from memplan.estimators.lowering.attention import adds_mask_in_place
from memplan.estimators.lowering.torch_release import TORCH_RELEASE
from memplan.training.dense_parts import dense_parts

_SUM, _PRODUCT = torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor
_WRITES_INTO_ZEROS = (
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_add.default,
    torch.ops.aten.scatter_add.default,
    torch.ops.aten.scatter.src,
    torch.ops.aten.masked_scatter.default,
    torch.ops.aten.put.default,
)
# From torch 2.14 on numbers that equal a bound share their gradient with it (``clamp_backward``, ``maximum_backward``).
_SHARES_AT_BOUNDS = TORCH_RELEASE >= (2, 14)
_CLAMPS = ("ClampBackward0", "ClampBackward1")
_BOUNDS = (
    *(*_CLAMPS, "ClampMinBackward1", "ClampMaxBackward1", "MaximumBackward0", "MinimumBackward0"),
    *(("FmaxBackward0", "FminBackward0") if _SHARES_AT_BOUNDS else ()),
)
_FILL = torch.ops.aten.masked_fill.Scalar
_OUT_OF_PLACE_SUMS = ("VarMeanBackward0", "StdMeanBackward0")  # ``var_mean_backward``
_IN_PLACE_PRODUCTS = ("BinaryCrossEntropyBackward0",)  # ``binary_cross_entropy_target_backward``
# ``evenly_distribute_backward``, and with it ``clamp_backward`` until torch 2.13
_EVENLY_DISTRIBUTED = ("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0")
_JOINED_MASKS = {
    torch.ops.aten.logical_and.default: (*(() if _SHARES_AT_BOUNDS else _CLAMPS), *_EVENLY_DISTRIBUTED),
    torch.ops.aten.logical_or.default: _EVENLY_DISTRIBUTED,
}


class InPlaceFormulas:
    """Tells which operand an operator of autograd writes its result over."""

    def __init__(self) -> None:
        self._summed_by_formula: int | None = None

    def written_operand(self, operator: Any, args: tuple[Any, ...], *, in_users_code: bool) -> torch.Tensor | None:
        """Return the operand that the result is written over if nothing else needs it; None if none is.

        Args:
            operator: the operator.
            args: its positional arguments.
            in_users_code: whether a module's forward runs, as in the backward pass of a checkpoint, or an operator that
                is written in Python.
        """
        if operator is _SUM and adds_mask_in_place():
            mask_sum: torch.Tensor = args[0]
            return mask_sum
        if not is_in_backward() or in_users_code:
            return None
        if operator is SPARSE_CLONE and args[0].layout is torch.sparse_coo:
            return dense_parts(args[0])[-1]
        if operator not in _WRITES_INTO_ZEROS and not self._runs_in_place(operator, args):
            return None
        first: torch.Tensor = args[0]
        owns_storage = first._base is None  # noqa: SLF001 - says whether it is a view
        return first if owns_storage and _is_dense(first) else None

    def _runs_in_place(self, operator: Any, args: tuple[Any, ...]) -> bool:
        if operator is _SUM:
            is_tracked = torch.is_grad_enabled()  # gradients that are differentiated again are summed out of place
            return not is_tracked and _are_alike(args[0], args[1]) and not self._is_in_out_of_place_formula()
        return (operator is _PRODUCT and _is_in(_IN_PLACE_PRODUCTS)) or (operator is _FILL and _is_in(_BOUNDS))

    def _is_in_out_of_place_formula(self) -> bool:
        """Whether a sum in backward is the first of a formula that sums out of place."""
        node = torch._C._current_autograd_node()  # noqa: SLF001 - public under no other name
        if node is None or node.name() not in _OUT_OF_PLACE_SUMS:
            return False
        before, self._summed_by_formula = self._summed_by_formula, node._sequence_nr()  # noqa: SLF001 - likewise
        return before != self._summed_by_formula


def joins_masks(operator: Any) -> bool:
    """Whether the operator writes its second operand, a mask, into the first."""
    return operator in _JOINED_MASKS and _is_in(_JOINED_MASKS[operator])


def is_in_backward() -> bool:
    """Whether autograd runs, in the loss as well as after it."""
    return bool(torch._C._current_graph_task_id() >= 0)  # noqa: SLF001 - public under no other name


def _is_in(formulas: tuple[str, ...]) -> bool:
    """Whether one of these derivative formulas runs."""
    node = torch._C._current_autograd_node()  # noqa: SLF001 - public under no other name
    return node is not None and node.name() in formulas


def _are_alike(first: torch.Tensor, second: Any) -> bool:
    return isinstance(second, torch.Tensor) and first.shape == second.shape and first.dtype == second.dtype


def _is_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
