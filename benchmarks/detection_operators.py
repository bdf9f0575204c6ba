"""Operators that torchvision's own library defines, for where that does not load."""

from __future__ import annotations

import contextlib

import torch


def define_detection_operators() -> None:
    """Let a torchvision built for CUDA load beside a torch built for the CPU: it registers kernels for these."""
    if torch.version.cuda is not None:  # torchvision defines them itself, and may not find them defined
        return
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
