"""Which CUDA kernels are known, and how the others are named."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.lowering.kernel_rules import cuda_kernels, host_kernels
from memplan.estimators.lowering.operator_rules import unknown_kernels

aten = torch.ops.aten


@pytest.mark.parametrize(
    "operator",
    [
        aten.add.Tensor, aten.relu_.default, aten.view.default, aten.mm.default, aten.cat.default,
        aten.native_layer_norm.default, aten.sort.default, aten._foreach_add_.List, aten.empty.memory_format,
        aten._prelu_kernel.default, aten.as_strided_.default, aten.hardswish_.default, aten.gelu_.default,
        aten.floor_divide_.Tensor, aten.addmm_.default, aten.nonzero.default, aten.topk.default, aten.renorm_.default,
        aten.median.default, aten._unique2.default, aten._cdist_backward.default, aten.linalg_cross.default,
        aten.randperm.default, aten._sample_dirichlet.default, aten.affine_grid_generator.default, aten.poisson.default,
        aten.hann_window.default, aten._grouped_mm.default, aten._scaled_dot_product_cudnn_attention.default,
        aten._scaled_dot_product_cudnn_attention_backward.default,
    ],
    ids=str,
)  # fmt: skip
def test_kernels_that_need_nothing_or_are_counted_are_known(operator: torch._ops.OpOverload) -> None:
    assert cuda_kernels((8, 0), 108).are_known(operator, str(operator.overloadpacket))


@pytest.mark.parametrize(
    "operator",
    [
        aten.linalg_qr.default,
        aten._fft_r2c.default,
        aten._linalg_eigh.default,
    ],
    ids=str,
)  # fmt: skip
def test_kernels_that_take_what_nobody_counts_are_not_known(operator: torch._ops.OpOverload) -> None:
    assert not cuda_kernels((8, 0), 108).are_known(operator, str(operator.overloadpacket))
    assert host_kernels().are_known(operator, str(operator.overloadpacket))


def test_unknown_kernels_of_one_kind_are_named_in_one_phrase_with_their_calls() -> None:
    calls = [("aten.mode", 2), ("aten._fft_c2r", 1), ("aten._fft_r2c", 3)]
    of_transforms, of_others = unknown_kernels(calls)
    assert of_transforms.startswith("work areas of Fourier transforms")
    assert of_transforms.endswith(": aten._fft_c2r (1 call), aten._fft_r2c (3 calls)")
    assert of_others == "what these kernels take inside: aten.mode (2 calls)"
