"""Derivative formulas for plain tensors, where autograd uses others for fake ones.

Some formulas of ``torch/csrc/autograd/FunctionsManual.cpp`` and ``aten/src/ATen/native/ReduceOps.cpp`` check whether a
tensor is a subclass (``isTensorSubclassLike``). For subclasses they read no values, write nothing in place and keep
more tensors alive. This module implements the other branches, and those of composite operators that ask likewise.
Factors of products are assumed not to be zero, unless they are rectified or dropped out.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memplan.estimators.fake_tensors.dispatcher import KernelOverrides

if TYPE_CHECKING:
    from collections.abc import Callable

_KEY = "AutogradCPU"
_MEAN = 1  # ``at::Reduction::Mean``
_AS_MANY_AS_FOUND = -1  # classes of one_hot
_MAKE_ZEROS = frozenset({"ReluBackward0", "ThresholdBackward0", "HardtanhBackward0", "NativeDropoutBackward0"})


@functools.cache
def install_plain_derivatives() -> None:
    """Register the derivatives for fake tensors, for the rest of this process."""
    kernels = KernelOverrides(_KEY)
    kernels.wrap("prod", _product)
    kernels.wrap("prod.dim_int", _product)
    kernels.wrap("cumprod", _running_product)
    kernels.wrap("linear", _linear)
    kernels.wrap("one_hot", _one_hot)
    kernels.wrap("binary_cross_entropy_with_logits", _entropy_of_logits)


def needs_derivative(source: torch.Tensor) -> bool:
    """Whether autograd would record an operator of a fake tensor, and nothing else transforms it."""
    in_transform = torch._C._are_functorch_transforms_active()  # noqa: SLF001 - public under no other name
    return isinstance(source, FakeTensor) and source.requires_grad and torch.is_grad_enabled() and not in_transform


def _product(
    own: Callable[..., Any],
    source: torch.Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    rest = () if dim is None else (dim, keepdim)
    if source.dim() and needs_derivative(source):
        return _Product.apply(source, rest, dtype, _has_zeros(source))  # type: ignore[no-untyped-call]  # untyped in torch
    return own(source, *rest, dtype=dtype)


def _has_zeros(source: torch.Tensor) -> bool:
    """Whether some elements are surely zero, by what made the tensor.

    Autograd's formula for fake running products is that for plain ones with zeros.
    """
    return source.grad_fn is not None and source.grad_fn.name() in _MAKE_ZEROS


def _running_product(
    own: Callable[..., Any], source: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None
) -> Any:
    if source.dim() and source.shape[dim] > 1 and needs_derivative(source) and not _has_zeros(source):
        return _RunningProduct.apply(source, dim, dtype)  # type: ignore[no-untyped-call]  # untyped in torch
    return own(source, dim, dtype=dtype)


def _linear(
    own: Callable[..., Any], values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> Any:
    """Add a bias in place where it is not part of the product (``linear`` in ``aten/src/ATen/native/Linear.cpp``)."""
    is_one_product = values.dim() == 2 or (values.dim() > 2 and values.is_contiguous())
    if bias is None or is_one_product or not isinstance(bias, FakeTensor):
        return own(values, weight, bias)
    return own(values, weight, None).add_(bias)


def _one_hot(own: Callable[..., Any], classes: torch.Tensor, num_classes: int = _AS_MANY_AS_FOUND) -> Any:
    """Scatter ones into zeros (``one_hot`` in ``aten/src/ATen/native/Onehot.cpp``).

    Fake tensors are compared with a range, which makes a mask beside the result; so are those that a compiler sees.
    """
    is_answered = isinstance(classes, FakeTensor) and not torch.compiler.is_compiling()
    if not is_answered or classes.dtype is not torch.int64 or not classes.numel():
        return own(classes, num_classes)
    if num_classes == _AS_MANY_AS_FOUND:
        num_classes = int(torch.ops.aten.item(classes.max())) + 1
    zeros = classes.new_zeros((*classes.shape, num_classes))
    return zeros.scatter_(-1, classes.unsqueeze(-1), 1)


def _entropy_of_logits(  # noqa: PLR0917 - the operator's own signature
    own: Callable[..., Any],
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    pos_weight: torch.Tensor | None = None,
    reduction: int = _MEAN,
) -> Any:
    if needs_derivative(logits) and not target.requires_grad:
        return _EntropyOfLogits.apply(logits, target, weight, pos_weight, reduction)  # type: ignore[no-untyped-call]  # untyped in torch
    return own(logits, target, weight, pos_weight, reduction)


class _Product(torch.autograd.Function):
    """``prod_backward``."""

    @staticmethod
    def forward(
        ctx: Any, source: torch.Tensor, rest: tuple[Any, ...], dtype: torch.dtype | None, has_zeros: bool
    ) -> torch.Tensor:
        result = torch.prod(source, *rest, dtype=dtype)
        ctx.save_for_backward(source, result)
        ctx.rest, ctx.has_zeros = rest, has_zeros
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        source, result = ctx.saved_tensors
        source = source.to(gradient.dtype)
        if ctx.rest:
            dim, keepdim = ctx.rest
            if not keepdim:
                gradient, result = gradient.unsqueeze(dim), result.unsqueeze(dim)
            zeros = source == 0
            counts = zeros.sum(dim, keepdim=True)  # noqa: F841 - alive until the end, as the zeros are
            if ctx.has_zeros and source.shape[dim] > 1:
                return gradient * _products_of_others(source, dim).conj(), None, None, None
        return gradient * (result / source).conj(), None, None, None


def _products_of_others(source: torch.Tensor, dim: int) -> torch.Tensor:
    """``prod_safe_zeros_backward``, whose intermediate results live until its end."""
    ones, others = torch.ones_like(source.narrow(dim, 0, 1)), source.shape[dim] - 1
    from_the_start = torch.cat((ones, source.narrow(dim, 0, others)), dim)
    before = from_the_start.cumprod(dim)
    reverse = source.narrow(dim, 1, others).flip(dim)
    from_the_end = torch.cat((ones, reverse), dim)
    after = from_the_end.cumprod(dim).flip(dim)
    return before * after


class _RunningProduct(torch.autograd.Function):
    """``cumprod_backward``."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
        result = torch.cumprod(source, dim, dtype=dtype)
        ctx.save_for_backward(source, result)
        ctx.dim = dim
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        source, result = ctx.saved_tensors
        weighted = result.conj() * gradient.to(source.dtype)
        zeros = source == 0  # noqa: F841 - alive until the end
        return _reversed_cumsum(weighted, ctx.dim) / source.conj(), None, None


class _EntropyOfLogits(torch.autograd.Function):
    """``binary_cross_entropy_with_logits_backward``."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, *rest: Any) -> Any:
        ctx.save_for_backward(logits, *rest[:-1])
        ctx.reduction = rest[-1]
        return torch.ops.aten.binary_cross_entropy_with_logits(logits, *rest)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits, target, weight, pos_weight = ctx.saved_tensors
        if pos_weight is None:
            of_logits = _in_place("sub", logits.sigmoid(), target)
        else:
            positive = pos_weight * target
            of_logits = _in_place("mul", _in_place("sub", positive + 1, target), logits.sigmoid())
            of_logits = _in_place("sub", of_logits, positive)
        of_logits = _in_place("mul", of_logits, gradient)
        if weight is not None:
            of_logits = _in_place("mul", of_logits, weight)
        if ctx.reduction == _MEAN:
            of_logits.div_(logits.numel())
        return of_logits, None, None, None, None


def _reversed_cumsum(source: torch.Tensor, dim: int) -> torch.Tensor:
    """``reversed_cumsum``: one expression, whose intermediate results live until its end."""
    from_the_end = source.flip(dim)
    summed = from_the_end.cumsum(dim)
    return summed.flip(dim)


def _in_place(operator: str, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Run the operator in place on the first operand, unless higher derivatives are recorded."""
    name = operator if torch.is_grad_enabled() else f"{operator}_"
    written: torch.Tensor = getattr(first, name)(second)
    return written
