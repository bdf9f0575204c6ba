"""CUDA kernels that are known to have no temporaries, so that all others can be reported.

An operator is *counted* if a rule gives its kernel's temporaries, *plain* if the kernel in ATen
(``aten/src/ATen/native/cuda`` of torch 2.13) has none, or scratch of at most a few megabytes (reductions, scans), and
else *unknown*. Elementwise operators, views, and everything of optimizers are plain.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch._ops import OpOverload

# What NCCL takes is told of all replicas; PyTorch's primitives are those that its decompositions are made of.
_PLAIN_NAMESPACES = ("prim", "prims", "profiler", "c10d", "_c10d_functional", "fsdp")
_HOST_NAMESPACES = (*_PLAIN_NAMESPACES, "aten", "mkl", "mkldnn", "onednn", "quantized", "torchvision")
_PLAIN_PREFIXES = ("_foreach_", "_fused_", "_amp_", "upsample_", "_upsample_", "new_", "empty", "adaptive_", "avg_pool",
                   "_adaptive_", "max_pool", "reflection_pad", "replication_pad", "scatter", "index_", "nll_loss",
                   "sym_", "is_")  # fmt: skip
_PLAIN = frozenset(
    (
        "all", "_is_all_true", "_is_any_true", "amax", "amin", "any", "argmax", "argmin", "max", "min", "norm", "std",
        "std_mean", "var", "var_mean", "aminmax", "arange", "bernoulli", "clone", "_to_copy", "copy", "cat", "stack",
        "fill", "full", "full_like", "linspace", "ones", "ones_like", "rand", "rand_like", "randn", "randn_like",
        "randint", "randint_like", "uniform_", "exponential_", "random_", "scalar_tensor", "zero_", "zeros",
        "zeros_like", "eye", "lift_fresh_copy", "lift", "resize_", "set_", "_local_scalar_dense", "item",
        "_unsafe_view", "unfold_backward", "select_backward", "slice_backward", "select_scatter", "slice_scatter",
        "as_strided_scatter", "diagonal_scatter", "diagonal_backward", "diagonal_copy", "constant_pad_nd", "flip",
        "repeat", "repeat_interleave", "tril", "triu", "tril_indices", "triu_indices", "one_hot", "where",
        "masked_fill", "embedding", "floor_divide", "gather", "take_along_dim", "pixel_shuffle", "pixel_unshuffle",
        "native_dropout_backward", "_native_batch_norm_legit", "_batch_norm_with_update", "batch_norm_backward",
        "_weight_norm_interface", "_weight_norm_interface_backward", "glu", "glu_backward", "gelu_backward",
        "hardswish", "hardswish_backward", "hardsigmoid_backward", "hardtanh_backward", "leaky_relu_backward",
        "elu_backward", "softplus_backward", "threshold_backward", "mish_backward", "log_sigmoid_forward",
        "log_sigmoid_backward", "_prelu_kernel", "_prelu_kernel_backward", "rrelu_with_noise", "mse_loss_backward",
        "smooth_l1_loss_backward", "huber_loss_backward", "binary_cross_entropy", "binary_cross_entropy_backward",
        "grid_sampler_2d", "grid_sampler_2d_backward", "grid_sampler_3d", "grid_sampler_3d_backward", "_cdist_forward",
        "bucketize", "searchsorted", "_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl",
        "_thnn_fused_gru_cell", "_thnn_fused_gru_cell_backward", "complex", "view_as_real_copy", "_conj_physical",
        "squeeze_copy", "isin", "mv", "addr", "outer", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_cudnn_attention", "_assert_async", "_assert_scalar", "value_selecting_reduction_backward",
        "zeros_and_scatter", "nonzero", "device", "_chunk_cat",
        "_efficientzerotensor", "_embedding_bag", "_embedding_bag_per_sample_weights_backward", "_linalg_check_errors",
        "_segment_reduce_backward", "addmv", "bincount", "block_diag", "cauchy_", "channel_shuffle", "diag_embed",
        "dot", "fractional_max_pool2d", "fractional_max_pool3d", "fractional_max_pool3d_backward", "geometric_",
        "hardshrink_backward", "histc", "linalg_cross", "log_normal_", "logspace", "lu_unpack", "max_unpool2d",
        "max_unpool3d", "multi_margin_loss", "multi_margin_loss_backward", "nonzero_static", "normal", "polar", "put",
        "renorm", "resize_as_", "rot90", "rsub", "segment_reduce", "softshrink_backward", "split_with_sizes_copy",
        "take", "trace", "unsafe_split", "vdot", "_standard_gamma", "_standard_gamma_grad", "_dirichlet_grad",
        "poisson", "binomial", "_pdist_forward", "linalg_solve_triangular", "hann_window", "hamming_window",
        "rrelu_with_noise_backward", "roi_align", "_roi_align_backward", "roi_pool", "_roi_pool_backward",
        "_has_same_storage_numel", "addbmm", "soft_margin_loss", "multilabel_margin_loss_forward",
        "multilabel_margin_loss_backward", "alias_copy", "as_strided_copy", "expand_copy", "narrow_copy",
        "permute_copy", "t_copy", "transpose_copy", "unbind_copy", "unsqueeze_copy", "view_copy",
    )
)  # fmt: skip

_CHOSEN_ON_THE_CARD = {
    "work areas of Fourier transforms, which cuFFT chooses on the card": ("_fft_r2c", "_fft_c2r", "_fft_c2c"),
    "work areas of factorizations, which cuSOLVER and MAGMA choose on the card": (
        "_linalg_det", "_linalg_eigh", "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd", "cholesky",
        "cholesky_inverse", "cholesky_solve", "geqrf", "linalg_cholesky_ex", "linalg_eig", "linalg_householder_product",
        "linalg_inv_ex", "linalg_ldl_factor_ex", "linalg_ldl_solve", "linalg_lstsq", "linalg_lu", "linalg_lu_factor_ex",
        "linalg_lu_solve", "linalg_pinv", "linalg_qr", "ormqr",
    ),
}  # fmt: skip
_CHOSEN_BY_OPERATOR = {f"aten.{name}": kind for kind, names in _CHOSEN_ON_THE_CARD.items() for name in names}


@functools.cache
def is_plain(operator: OpOverload) -> bool:
    """Whether the operator's CUDA kernel is known to have next to no temporaries."""
    name = operator.overloadpacket.__name__
    return _is_plain(operator, name) or (name.endswith("_") and _is_plain_out_of_place(name.removesuffix("_")))


def is_of_known_library(operator: OpOverload) -> bool:
    """Whether an operator is PyTorch's own or torchvision's, whose kernels on the host take what rules say.

    Those of other libraries may run operators that are not seen.
    """
    return operator.namespace in _HOST_NAMESPACES


def _is_plain_out_of_place(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    return packet is not None and any(_is_plain(getattr(packet, each), name) for each in packet.overloads())


def _is_plain(operator: OpOverload, name: str) -> bool:
    return (
        operator.namespace in _PLAIN_NAMESPACES
        or torch.Tag.pointwise in operator.tags
        or bool(getattr(operator, "is_view", False))
        or name in _PLAIN
        or name.startswith(_PLAIN_PREFIXES)
    )


def is_chosen_on_card(operator: str) -> bool:
    """Whether a library chooses a workspace of the operator, given without overload, at run time."""
    return operator in _CHOSEN_BY_OPERATOR


def unknown_kernels(calls: Collection[tuple[str, int]]) -> tuple[str, ...]:
    """Return the operators whose kernels may have uncounted temporaries, one phrase per kind.

    Args:
        calls: operator and how often it runs in one optimizer step.
    """
    by_kind: dict[str, list[str]] = {}
    for name, count in sorted(calls):
        kind = _CHOSEN_BY_OPERATOR.get(name, "what these kernels take inside")
        by_kind.setdefault(kind, []).append(f"{name} ({count} {'call' if count == 1 else 'calls'})")
    return tuple(f"{kind}: {', '.join(names)}" for kind, names in by_kind.items())
