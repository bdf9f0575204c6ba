"""In-place operators that only write values: they neither allocate nor change a shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from torch._ops import OpOverload

_ELEMENTWISE = (
    "abs_", "add_", "addcdiv_", "addcmul_", "clamp_", "clamp_max_", "clamp_min_", "copy_", "div_", "erfinv_", "exp_",
    "fill_", "lerp_", "log_", "maximum_", "mul_", "neg_", "normal_", "pow_", "reciprocal_", "relu_", "rsqrt_",
    "sigmoid_", "sign_", "sqrt_", "sub_", "tanh_", "uniform_", "zero_",
)  # fmt: skip
_FUSED = (
    "_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_", "_amp_foreach_non_finite_check_and_unscale_",
)  # fmt: skip


def _overloads() -> frozenset[OpOverload]:
    aten = torch.ops.aten
    names = [*_ELEMENTWISE, *(f"_foreach_{name}" for name in _ELEMENTWISE), *_FUSED]
    packets = [getattr(aten, name) for name in names if hasattr(aten, name)]
    return frozenset(getattr(packet, overload) for packet in packets for overload in packet.overloads())


_WRITES_ONLY = _overloads()


def only_writes(operator: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether running the operator on fake tensors would have no effect.

    It has one for fake scalars, which may have a value (an optimizer's step counter), for scalars that are drawn, and
    for operands that cannot be broadcast to the target, which raise.
    """
    if operator is torch.ops.aten.uniform_.default and args[0].numel() == 1:
        return False
    if operator not in _WRITES_ONLY:
        return False
    if isinstance(args[0], list | tuple):
        target = args[0][0]
        return isinstance(target, FakeTensor) and target.dim() > 0
    return isinstance(args[0], FakeTensor) and args[0].dim() > 0 and all(_fits(each, args[0]) for each in args[1:])


def _fits(operand: Any, target: torch.Tensor) -> bool:
    if not isinstance(operand, torch.Tensor) or operand.shape == target.shape:
        return True
    paired = zip(reversed(operand.shape), reversed(target.shape), strict=False)
    return operand.dim() <= target.dim() and all(size in (1, wanted) for size, wanted in paired)
