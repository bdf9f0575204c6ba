"""Lowering this process to the target device, so that traces run its operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from memplan.devices.cards import DeviceKind
from memplan.estimators.absent_card.cuda_emulation import CudaEmulation, redirect_cuda_autocast
from memplan.estimators.fake_tensors.inference_mode import trace_inference_mode
from memplan.estimators.fake_tensors.plain_derivatives import install_plain_derivatives
from memplan.estimators.lowering.cuda_autocast import CudaAutocast
from memplan.estimators.lowering.cuda_operators import install_cuda_operators
from memplan.estimators.lowering.custom_operator_casts import cast_as_registered_for_cuda
from memplan.estimators.lowering.flash_attention_stand_in import FlashAttentionStandIn
from memplan.estimators.lowering.flex_attention import FlexAttention
from memplan.estimators.lowering.inductor_card import InductorCard, inductor_card
from memplan.estimators.lowering.kernel_rules import KernelRules, cuda_kernels, host_kernels
from memplan.estimators.lowering.operator_rules import unknown_kernels
from memplan.estimators.lowering.transformer_fast_path import take_fast_path

if TYPE_CHECKING:
    from collections.abc import Collection

    from memplan.devices.cards import DeviceSpec

_ASSUMED_CAPABILITY = (8, 0)
_FLEX_ATTENTION = FlexAttention()  # installed for the rest of the process, like all that lowers it

# Class of a module -> workspace whose size cuDNN chooses at run time.
_UNCOUNTED_MODULES = {"RNN": "cuDNN RNN workspace"}
_FASTEST_ALGORITHMS = (
    "what algorithms take that cuDNN finds faster than those it proposes first (benchmark mode), which only a run shows"
)


def lower_to(device: DeviceSpec) -> None:
    """Make this process trace what the device would run, until it ends."""
    install_plain_derivatives()
    trace_inference_mode()
    capability = _lowered_capability(device)
    take_fast_path(capability)
    if capability is not None:
        install_cuda_operators(capability, device.sm_count)
        CudaAutocast().install()
        cast_as_registered_for_cuda()
        redirect_cuda_autocast()
        _FLEX_ATTENTION.install()


def cuda_emulation_for(device: DeviceSpec, *, card_is_seen: bool) -> CudaEmulation | None:
    """Return the context that emulates CUDA for user code; None for the CPU.

    Args:
        device: the target device.
        card_is_seen: whether user code sees the card.
    """
    capability = _lowered_capability(device)
    return None if capability is None else CudaEmulation(device, capability, is_seen=card_is_seen)


def flash_attention_stand_in(device: DeviceSpec) -> FlashAttentionStandIn | None:
    """Return what stands for the flash_attn package on a card that is not there; None for others and the CPU."""
    capability = _lowered_capability(device)
    return None if capability is None or device.live_index is not None else FlashAttentionStandIn(capability)


def _lowered_capability(device: DeviceSpec) -> tuple[int, int] | None:
    """Return the compute capability to lower to; None for the CPU."""
    if device.kind is DeviceKind.CPU:
        return None
    return device.compute_capability or _ASSUMED_CAPABILITY


def lowering_notes(device: DeviceSpec) -> tuple[str, ...]:
    """Say what was assumed about the device, and what was lowered unexpectedly."""
    if device.kind is DeviceKind.CPU or device.compute_capability is not None:
        return _FLEX_ATTENTION.notes
    major, minor = _ASSUMED_CAPABILITY
    return (
        *_FLEX_ATTENTION.notes,
        f"compute capability {major}.{minor} is assumed, because only the size of {device.name} is known",
    )


def kernels_of(device: DeviceSpec) -> KernelRules:
    """Return the rules for temporaries of the device's kernels."""
    capability = _lowered_capability(device)
    if capability is None:
        return host_kernels()
    return cuda_kernels(capability, device.sm_count)


def inductor_card_of(device: DeviceSpec) -> InductorCard | None:
    """Return what Inductor is told of the device; None for the CPU, whose compiled code is not followed."""
    capability = _lowered_capability(device)
    return None if capability is None else inductor_card(capability, device.sm_count)


def uncounted_on(
    device: DeviceSpec, *, classes: Collection[str], calls: Collection[tuple[str, int]], world_size: int
) -> tuple[str, ...]:
    """Say what no rule counts, one phrase each.

    Args:
        device: the target device.
        classes: classes of the model's modules.
        calls: operators without a rule, and how often each runs in a step.
        world_size: data-parallel replicas.
    """
    if device.kind is DeviceKind.CPU:
        return unknown_kernels(calls)
    libraries = dict.fromkeys(what for name, what in _UNCOUNTED_MODULES.items() if name in classes)
    convolves = any("Conv" in name for name in classes)
    timed = (_FASTEST_ALGORITHMS,) if convolves and torch.backends.cudnn.benchmark else ()
    network = ("NCCL's buffers for sending gradients",) if world_size > 1 else ()
    return (*unknown_kernels(calls), *libraries, *timed, *network)
