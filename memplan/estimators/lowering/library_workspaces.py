"""Workspaces that libraries allocate once and keep."""

from __future__ import annotations

from memplan.units import KIB, MIB

# Nested tensors run the last two whole (``torch/nested/_internal/ops.py``).
CUBLAS_OPERATORS = frozenset(
    f"aten.{name}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "vdot", "linear", "matmul")
)


def cublas_workspace_bytes(capability: tuple[int, int]) -> int:
    """Return the default cuBLAS workspace of one thread, ``CUBLAS_WORKSPACE_CONFIG`` unset.

    cuBLASLt shares it. Source: ``aten/src/ATen/cuda/CublasHandlePool.cpp`` of torch 2.13: 4096 * 8 KiB on Hopper and
    Blackwell, ``:4096:2:16:8`` on all others.
    """
    return 32 * MIB if capability >= (9, 0) else 2 * 4096 * KIB + 8 * 16 * KIB
