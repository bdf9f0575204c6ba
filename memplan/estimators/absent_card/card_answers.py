"""Replacements for the functions of ``torch.cuda`` and ``torch.accelerator``, which answer as the absent card would."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch._jit_internal import is_scripting
from torch.utils._foreach_utils import _foreach_supported_types

from memplan.estimators.absent_card.cached_memory import empty_cache
from memplan.estimators.absent_card.card_streams import (
    StandInEvent,
    StandInStream,
    current_stream,
    default_stream,
    entered,
)
from memplan.estimators.absent_card.tensor_types import tensor_types
from memplan.training.dense_parts import wraps_others

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memplan.devices.cards import DeviceSpec

_HALF_FROM = 8  # major version from which bfloat16 and TF32 are native (torch.cuda.is_bf16_supported)
_RETURNING_NONE = (
    "set_device", "synchronize", "reset_peak_memory_stats", "reset_max_memory_allocated", "ipc_collect",
    "set_per_process_memory_fraction", "set_rng_state", "set_rng_state_all", "set_stream", "reset_max_memory_cached",
    "reset_accumulated_memory_stats", "_record_memory_history", "_dump_snapshot", "set_device_index",
)  # fmt: skip
_READINGS = ("current_device", "current_device_index", "utilization", "temperature", "power_draw", "clock_rate")
NVTX = ("range_push", "range_pop", "range_start", "range_end", "mark")  # functions of ``torch.cuda.nvtx``


class StandInDevice(nullcontext[None]):
    """Replaces ``torch.cuda.device``, a context for which PyTorch also tests."""

    def __init__(self, device: Any) -> None:  # noqa: ARG002 - torch's
        super().__init__()


class StandInGenerator(torch.Generator):
    """Replaces ``torch.Generator``: a generator of the card draws on the CPU, where the traced tensors are."""

    def __new__(cls, device: Any = "cpu") -> Self:  # noqa: ARG004 - torch's
        """Return a CPU generator for any device."""
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]  # torch's stubs have no more than its __init__


def card_answers(device: DeviceSpec, capability: tuple[int, int]) -> dict[str, Callable[..., Any]]:
    """Return the replacement of each function and class of ``torch.cuda`` and its kin, for any card index.

    Args:
        device: the card.
        capability: its compute capability, assumed where only a size is known.
    """
    major, minor = capability
    properties = SimpleNamespace(
        name=device.name,
        major=major,
        minor=minor,
        total_memory=device.total_bytes,
        multi_processor_count=device.sm_count,
        warp_size=32,
    )
    free_bytes = device.total_bytes - device.context_bytes
    fixed = {
        "get_device_properties": properties,
        "get_device_capability": capability,
        "get_device_name": device.name,
        "mem_get_info": (free_bytes, device.total_bytes),
        "is_tf32_supported": major >= _HALF_FROM,
        "memory_stats": defaultdict(int),
        "memory_summary": "",
        "device_of": nullcontext(),
    }
    answers: dict[str, Callable[..., Any]] = {name: always(value) for name, value in fixed.items()}
    answers |= {name: always(None) for name in _RETURNING_NONE}
    answers |= {name: always(0) for name in _READINGS}
    answers |= tensor_types()
    answers["is_bf16_supported"] = lambda including_emulation=True: including_emulation or major >= _HALF_FROM
    answers["get_rng_state"] = lambda *_device, **_named: torch.get_rng_state()
    answers["get_rng_state_all"] = lambda: [torch.get_rng_state()]
    answers["empty_cache"] = empty_cache
    answers["device"] = StandInDevice
    answers["current_stream"] = current_stream
    answers["default_stream"] = default_stream
    answers["stream"] = entered
    answers["Stream"] = StandInStream
    answers["Event"] = StandInEvent
    return answers


def capturable_devices(supports_xla: bool = True) -> list[str]:  # noqa: ARG001 - torch's
    """Return the device of traced tensors; a plain function, since ``torch.distributed.optim`` scripts optimizers."""
    return ["cpu"]


def multi_tensor_by_default(
    params: list[torch.Tensor],
    differentiable: bool,
    use_fused: bool = False,  # noqa: ARG001 - torch's
) -> tuple[bool, bool]:
    """Choose the implementation that optimizers choose for plain parameters on a card, fused or foreach; likewise."""
    if is_scripting() or differentiable:
        return False, False
    return False, runs_multi_tensor(params)


def runs_multi_tensor(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether PyTorch would take these for plain tensors of a card, or for a subclass that it lists beside them."""
    return all(not wraps_others(kind) or kind in _foreach_supported_types for kind in map(type, tensors))


def always(value: Any) -> Callable[..., Any]:
    """Return a new function that ignores its arguments; torch.compile needs one per name."""
    return lambda *_args, **_kwargs: value
