"""What user code is told of a card that is not there, where it asks ``torch.cuda``: as that card would answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.devices.cards import DeviceSpec

_HALF_FROM = 8  # major version from which bfloat16 and TF32 are native (torch.cuda.is_bf16_supported)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProperties:
    """What ``torch.cuda.get_device_properties`` tells that is known of a card; other names are not.

    Args:
        name: the card's name.
        major: first part of its compute capability.
        minor: second part.
        total_memory: bytes, as CUDA reports it.
        multi_processor_count: streaming multiprocessors; None where only a size is known.
        warp_size: threads of a warp.
    """

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int | None
    warp_size: int = 32


def card_answers(device: DeviceSpec, capability: tuple[int, int]) -> dict[str, Callable[..., Any]]:
    """Return what each function of ``torch.cuda`` answers for a card, whatever index it is asked about.

    Args:
        device: the card.
        capability: its compute capability, assumed where only a size is known.
    """
    major, minor = capability
    properties = CardProperties(
        name=device.name,
        major=major,
        minor=minor,
        total_memory=device.total_bytes,
        multi_processor_count=device.sm_count,
    )
    free_bytes = device.total_bytes - (device.context_bytes or 0)
    fixed = {
        "get_device_properties": properties,
        "get_device_capability": capability,
        "get_device_name": device.name,
        "mem_get_info": (free_bytes, device.total_bytes),
        "is_tf32_supported": major >= _HALF_FROM,
        "current_device": 0,
        "set_device": None,
        "synchronize": None,
        "reset_peak_memory_stats": None,
    }
    answers = {name: _always(value) for name, value in fixed.items()}
    answers["is_bf16_supported"] = lambda including_emulation=True: including_emulation or major >= _HALF_FROM
    return answers


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: value
