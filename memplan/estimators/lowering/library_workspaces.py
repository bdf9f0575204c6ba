"""Workspaces that libraries allocate once and keep."""

from __future__ import annotations

import os
import re

from memplan.units import KIB, MIB

# Grids of affine transforms are products (``AffineGridGenerator.cpp``), and nested tensors run linear layers and
# products whole (``torch/nested/_internal/ops.py``).
_PRODUCTS = (
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "vdot", "affine_grid_generator", "linear",
    "matmul",
)  # fmt: skip
CUBLAS_OPERATORS = frozenset(f"aten.{name}" for name in _PRODUCTS)


def cublas_workspace_bytes(capability: tuple[int, int]) -> int:
    """Return the cuBLAS workspace of one thread: what ``CUBLAS_WORKSPACE_CONFIG`` says, or else the default.

    cuBLASLt shares it. Source: ``aten/src/ATen/cuda/CublasHandlePool.cpp`` of torch 2.13: sizes in KiB and how many of
    each, as in ``:4096:2:16:8``; by default 4096 * 8 KiB on Hopper and Blackwell, ``:4096:2:16:8`` on all others.
    """
    buffers = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if buffers:
        return sum(int(size) * int(count) for size, count in buffers) * KIB
    return 32 * MIB if capability >= (9, 0) else 2 * 4096 * KIB + 8 * 16 * KIB
