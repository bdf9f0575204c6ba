"""Settings that torch keeps for a whole process and that decide what a step takes, carried to a child process."""

from __future__ import annotations

import importlib
import sys
import warnings
from dataclasses import dataclass

_ATTENTION_KERNELS = ("flash", "mem_efficient", "math", "cudnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """What a process has set, by torch's own names.

    Args:
        default_dtype: type of tensors made without one, without ``torch.``.
        cudnn_benchmark: ``torch.backends.cudnn.benchmark``.
        cudnn_deterministic: ``torch.backends.cudnn.deterministic``.
        cudnn_allow_tf32: whether cuDNN's convolutions may round single precision to TF32.
        float32_matmul_precision: of ``torch.set_float32_matmul_precision``.
        deterministic_debug_mode: 0 for any algorithm, 1 to warn of those that do not repeat their results, 2 to refuse.
        attention_kernels: kernels of ``scaled_dot_product_attention`` that may be chosen.
    """

    default_dtype: str
    cudnn_benchmark: bool
    cudnn_deterministic: bool
    cudnn_allow_tf32: bool
    float32_matmul_precision: str
    deterministic_debug_mode: int
    attention_kernels: tuple[str, ...]


def read_torch_settings() -> TorchSettings | None:
    """Read this process's settings; None where it has not loaded torch, and so set nothing."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch 2.9.0 warns whoever asks for it
        matmul_precision = torch.get_float32_matmul_precision()
    return TorchSettings(
        default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        cudnn_benchmark=cudnn.benchmark,
        cudnn_deterministic=cudnn.deterministic,
        cudnn_allow_tf32=cudnn.conv.fp32_precision == "tf32",
        float32_matmul_precision=matmul_precision,
        deterministic_debug_mode=torch.get_deterministic_debug_mode(),
        attention_kernels=tuple(each for each in _ATTENTION_KERNELS if getattr(cuda, f"{each}_sdp_enabled")()),
    )


def apply_torch_settings(wanted: TorchSettings) -> None:
    """Set in this process what another has set otherwise; what is alike is left alone."""
    torch = importlib.import_module("torch")
    present = read_torch_settings()
    if present is None or wanted == present:
        return
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    if wanted.default_dtype != present.default_dtype:
        torch.set_default_dtype(getattr(torch, wanted.default_dtype))
    if wanted.cudnn_allow_tf32 != present.cudnn_allow_tf32:
        cudnn.allow_tf32 = wanted.cudnn_allow_tf32
    if wanted.float32_matmul_precision != present.float32_matmul_precision:
        torch.set_float32_matmul_precision(wanted.float32_matmul_precision)
    if wanted.deterministic_debug_mode != present.deterministic_debug_mode:
        torch.set_deterministic_debug_mode(wanted.deterministic_debug_mode)
    cudnn.benchmark, cudnn.deterministic = wanted.cudnn_benchmark, wanted.cudnn_deterministic
    for each in _ATTENTION_KERNELS:
        getattr(cuda, f"enable_{each}_sdp")(each in wanted.attention_kernels)
