"""The question that a plan answers: what to train, the request and the device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind
from memplan.devices.measured_contexts import calibrated
from memplan.devices.resolving import resolve_device
from memplan.plans.changes import original_recipe
from memplan.recommend.band import Band

if TYPE_CHECKING:
    from memplan.devices.cards import DeviceSpec
    from memplan.launchers import Launch
    from memplan.planning.subject import Subject
    from memplan.plans import PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """How should this subject be trained on that device?

    Args:
        subject: what is trained.
        request: what is wanted.
        device: what the request's device resolved to; its total is what utilisation refers to.
        band: where the device peak has to land.
    """

    subject: Subject
    request: PlanRequest
    device: DeviceSpec
    band: Band

    @property
    def largest_micro_batch(self) -> int:
        """Largest micro-batch that the request allows; it stays the same once memplan has changed the config."""
        original = original_recipe(self.subject.config, self.subject.current, self.request)
        return self.request.largest_micro_batch(original.micro_batch_size)


def question_of(subject: Subject, request: PlanRequest, launch: Launch | None = None) -> Question:
    """Resolve the device that a request names, limited to the share of each of a launcher's processes.

    Raises:
        UsageError: the band is out of range.
        DeviceError: the device is not known or not reachable.
    """
    device = share_of(device_for(request.device, request.budget_bytes), request, launch)
    band = Band(
        total_bytes=device.total_bytes,
        min_utilisation=request.min_utilisation,
        max_utilisation=request.max_utilisation,
    )
    return Question(subject=subject, request=request, device=device, band=band)


def device_for(text: str, budget_bytes: int | None) -> DeviceSpec:
    """Resolve a device, with its context if it was measured here before; a budget below its size replaces the size."""
    spec = calibrated(resolve_device(text, budget_bytes=budget_bytes))
    total_bytes = min(spec.total_bytes, budget_bytes or spec.total_bytes)
    return replace(spec, total_bytes=total_bytes)


def share_of(device: DeviceSpec, request: PlanRequest, launch: Launch | None) -> DeviceSpec:
    """Give each of several processes on one machine an equal part of its memory, unless a budget says how much."""
    sharers = launch.local_world_size if launch else None
    if sharers is None or device.kind is not DeviceKind.CPU or request.budget_bytes is not None:
        return device
    return replace(device, total_bytes=device.total_bytes // sharers)
