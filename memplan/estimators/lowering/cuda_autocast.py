"""CUDA's autocast policy for fake CPU tensors: its operator lists, its casts and its weight cache.

The CPU's policy differs: it runs softmax, layer norm, sums and powers in low precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from memplan.estimators.fake_tensors.dispatcher import KernelOverrides, argument_names, excluded, overload
from memplan.estimators.lowering.torch_release import TORCH_RELEASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

    Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_KEY = "AutocastCPU"
# ``aten/src/ATen/autocast_mode.h`` of torch 2.13, where not said otherwise.
# AT_FORALL_LOWER_PRECISION_FP and the RNNs of autocast_mode.cpp: run in half precision.
_LOW_PRECISION = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention", "lstm.input", "gru.input",
    "rnn_tanh.input", "rnn_relu.input", "lstm.data", "gru.data", "rnn_tanh.data", "rnn_relu.data",
)  # fmt: skip

# AT_FORALL_FP32: run in single precision.
_FP32 = (
    *(("rms_norm",) if TORCH_RELEASE >= (2, 12) else ()),
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
    "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm",
    "native_layer_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim",
    "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss",
    "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp", "upsample_nearest1d",
    "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_nearest3d",
    "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip

# AT_FORALL_FP32_SET_OPT_DTYPE: return single precision, unless the caller sets a dtype.
_FP32_BY_ARGUMENT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip

# AT_FORALL_PROMOTE: run in the widest type among the arguments.
_PROMOTE = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip


class CudaAutocast:
    """Replaces the CPU's autocast policy by CUDA's, for the rest of this process."""

    def __init__(self) -> None:
        self._kernels = KernelOverrides(_KEY)
        self._casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._clear_torch_cache = torch.clear_autocast_cache

    def install(self) -> None:
        """Register the kernels; autocast skips operators that only the CPU's lists name."""
        policies: tuple[tuple[tuple[str, ...], Callable[..., Arguments]], ...] = (
            (_LOW_PRECISION, self._lowered),
            (_FP32, _raised),
            (_FP32_BY_ARGUMENT, _raised_by_argument),
            (_PROMOTE, _promoted),
        )
        cast = {name: policy for names, policy in policies for name in names}
        for name in self._kernels.registered() - cast.keys():
            self._kernels.skip(name)
        for name, policy in cast.items():
            operator = overload(name)
            if operator is not None:
                self._kernels.replace(name, _outside_autocast(operator, policy))
        torch.clear_autocast_cache = self._clear  # called when the outermost autocast context closes

    def _clear(self) -> None:
        self._casts.clear()
        self._clear_torch_cache()

    def _lowered(self, _operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        dtype = torch.get_autocast_dtype("cpu")

        def lower(value: Any) -> Any:
            return self._cast(value, dtype) if _is_castable(value) else value

        return _mapped(lower, args, kwargs)

    def _cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        # aten/src/ATen/autocast_mode.cpp, cached_cast: one copy of a weight until the outermost context closes, which
        # from 2.11 on autograd knows of wherever it is made.
        weight = tensor.dtype is torch.float32 and tensor.requires_grad and tensor.is_leaf and tensor._base is None  # noqa: SLF001 - says whether it is a view
        if not weight or not torch.is_autocast_cache_enabled():
            return tensor.to(dtype)
        if id(tensor) not in self._casts:
            with torch.set_grad_enabled(TORCH_RELEASE >= (2, 11) or torch.is_grad_enabled()):
                self._casts[id(tensor)] = (tensor, tensor.to(dtype))
        return self._casts[id(tensor)][1]


def _outside_autocast(operator: OpOverload, policy: Callable[..., Arguments]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with excluded(_KEY):
            args, kwargs = policy(operator, args, kwargs)
            return operator(*args, **kwargs)

    return kernel


def _raised(_operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    return _mapped(lambda value: value.to(torch.float32) if _is_castable(value) else value, args, kwargs)


def _raised_by_argument(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    named = {**dict(zip(argument_names(operator), args, strict=False)), **kwargs}
    if _is_castable(args[0]) and named.get("dtype") is None:
        return (), {**named, "dtype": torch.float32}
    return args, kwargs


def _promoted(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    single = any(_is_castable(each) and each.dtype is torch.float32 for each in tree_leaves((args, kwargs)))
    return _raised(operator, args, kwargs) if single else (args, kwargs)


def _mapped(change: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    # The last argument first: GCC, which compiles PyTorch, evaluates the arguments of a call from right to left, and so
    # a bias is cast before its weight, and both before what they are applied to.
    last_first = {name: tree_map(change, value) for name, value in reversed(kwargs.items())}
    changed = [tree_map(change, value) for value in reversed(args)]
    return tuple(reversed(changed)), {name: last_first[name] for name in kwargs}


def _is_castable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64
