"""The device that a plan is for, and how much of it this process may use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind
from memplan.devices.measured_contexts import calibrated
from memplan.devices.resolving import resolve_device

if TYPE_CHECKING:
    from memplan.devices.cards import DeviceSpec
    from memplan.launchers import Launch
    from memplan.plans import PlanRequest


def device_for(text: str, budget_bytes: int | None) -> DeviceSpec:
    """Resolve a device, with its context as measured here before; a budget below its size takes the size's place."""
    spec = calibrated(resolve_device(text, budget_bytes=budget_bytes))
    total_bytes = min(spec.total_bytes, budget_bytes or spec.total_bytes)
    return replace(spec, total_bytes=total_bytes)


def share_of(device: DeviceSpec, request: PlanRequest, launch: Launch | None) -> DeviceSpec:
    """Leave each of several processes on one machine its part of the memory, where nothing says how much that is."""
    sharers = launch.local_world_size if launch else None
    if sharers is None or device.kind is not DeviceKind.CPU or request.budget_bytes is not None:
        return device
    return replace(device, total_bytes=device.total_bytes // sharers)
