"""What a plan answers, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.planning.planned_device import device_for, share_of
from memplan.recommend.band import Band

if TYPE_CHECKING:
    from memplan.devices.cards import DeviceSpec
    from memplan.launchers import Launch
    from memplan.planning.subject import Subject
    from memplan.plans import PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """How shall this be trained on that device?

    Args:
        subject: what is trained.
        request: what is wanted.
        device: what the request's device came to; its total is what utilisation refers to.
        band: where the device peak has to land.
    """

    subject: Subject
    request: PlanRequest
    device: DeviceSpec
    band: Band


def question_of(subject: Subject, request: PlanRequest, launch: Launch | None = None) -> Question:
    """Look up the device that a request names, and as much of it as each of a launcher's processes may use.

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
