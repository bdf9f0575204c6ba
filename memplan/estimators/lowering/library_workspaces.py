"""Workspaces of cuBLAS and cuBLASLt, which PyTorch takes from its caching allocator.

Until torch 2.14 the first product of a thread allocates one, which the thread keeps, and which cuBLASLt shares from
2.12 on; from 2.15 on every product allocates its own, and cuBLASLt another. Source:
``aten/src/ATen/cuda/CublasHandlePool.cpp`` of 2.13 and of the main branch of autumn 2026, and the allocations of 2.11,
2.13 and 2.15 themselves.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

import torch

from memplan.estimators.lowering.grouped_products import GROUPED_PRODUCT, runs_in_one_kernel
from memplan.estimators.lowering.torch_release import HAS_OUTER_PRODUCTS, TORCH_RELEASE
from memplan.training.half_precision import HALF_TYPES
from memplan.units import KIB, MIB

# Grids of affine transforms and distances are products (``AffineGridGenerator.cpp``, ``Distance.cpp``), bilinear layers
# some (``Linear.cpp``), and nested tensors run linear layers and products whole (``torch/nested/_internal/ops.py``).
_PRODUCTS = (
    "mm", "addmm", "addmm_", "_addmm_activation", "bmm", "baddbmm", "baddbmm_", "addbmm", "addbmm_", "addmv", "addmv_",
    "mv", "dot", "vdot", "affine_grid_generator", "linear", "matmul", "_trilinear", "_euclidean_dist",
)  # fmt: skip
_SCALED_PRODUCTS = ("aten._scaled_mm", "aten._scaled_mm_v2")  # of eight-bit types, on cuBLASLt
CUBLAS_OPERATORS = frozenset((*(f"aten.{name}" for name in _PRODUCTS), *_SCALED_PRODUCTS, GROUPED_PRODUCT))
_FUSING_BIAS = ("aten.addmm", "aten._addmm_activation")
_CUBLASLT_KIB = 1024
_CUBLASLT_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class ProductWorkspace:
    """A block that a matrix product takes beside operands and result.

    Args:
        library: for which of the two libraries.
        size_bytes: of the block; may be 0.
        is_kept: whether the thread that runs the product keeps the block for others; else it is freed at once.
    """

    library: str
    size_bytes: int
    is_kept: bool


def product_workspaces(
    capability: tuple[int, int], operator: str, args: tuple[Any, ...]
) -> tuple[ProductWorkspace, ...]:
    """Return what one of :data:`CUBLAS_OPERATORS` takes on a card of a compute capability."""
    if operator == "aten.bmm" and multiplies_elements(*args):
        return ()
    if operator == GROUPED_PRODUCT and runs_in_one_kernel(capability, *args[:2]):
        return ()
    is_kept = TORCH_RELEASE < (2, 15) or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"
    of_cublas = ProductWorkspace("cuBLAS", _cublas_bytes(capability), is_kept)
    of_cublaslt = ProductWorkspace("cuBLASLt", _cublaslt_bytes(), is_kept)
    if is_kept:
        has_second = TORCH_RELEASE < (2, 12) and _runs_on_cublaslt(operator, args)
        return (of_cublas, of_cublaslt) if has_second else (of_cublas,)
    return (of_cublaslt if _runs_on_cublaslt(operator, args) else of_cublas,)


def _cublas_bytes(capability: tuple[int, int]) -> int:
    """What ``CUBLAS_WORKSPACE_CONFIG`` says, sizes in KiB and how many of each as in ``:4096:2:16:8``, or the default.

    By default 4096 * 8 KiB on Hopper and Blackwell, ``:4096:2:16:8`` on all others.
    """
    buffers = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if buffers:
        return sum(int(size) * int(count) for size, count in buffers) * KIB
    return 32 * MIB if capability >= (9, 0) else 2 * 4096 * KIB + 8 * 16 * KIB


def _cublaslt_bytes() -> int:
    setting = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    return (int(setting) if setting.isdecimal() else _CUBLASLT_KIB) * KIB


def multiplies_elements(left: torch.Tensor, _right: torch.Tensor, *others: object) -> bool:
    """Whether a batched product is one of columns and rows, which PyTorch multiplies itself, in any memory format.

    Source: ``torch/_native/ops/bmm_outer_product`` of torch 2.13, which needs Triton.
    """
    return HAS_OUTER_PRODUCTS and left.shape[2] == 1 and not left.is_complex() and not others


def _runs_on_cublaslt(operator: str, args: tuple[Any, ...]) -> bool:
    return operator in _SCALED_PRODUCTS or (operator in _FUSING_BIAS and _fuses_bias(*args))


def _fuses_bias(bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor, beta: complex = 1, *_: object) -> bool:
    """Whether ``addmm`` runs on cuBLASLt: ``isInputCompliesAddmmCudaLt`` in ``aten/src/ATen/native/cuda/Blas.cpp``.

    It adds rows in any type, and as PyTorch 2.15 allocates also matrices of half types, a multiple of them included.
    """
    if os.environ.get("DISABLE_ADDMM_CUDA_LT") == "1" or left.dtype not in _CUBLASLT_TYPES or min(right.shape) == 1:
        return False
    rows, columns = left.shape[0], right.shape[1]
    if beta == 1 and bias.is_contiguous() and bias.squeeze().dim() == 1 and bias.shape[-1] == columns:
        return True
    is_matrix = bias.shape == (rows, columns) and bias.stride(1) == 1 and bias.stride(0) >= columns
    return TORCH_RELEASE >= (2, 15) and beta != 0 and is_matrix and rows > 1 and left.dtype in HALF_TYPES
