"""What other programs use on a card around a trial, and whether they made it run out of memory."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.devices.driver import card_uuid, device_used_bytes
from memplan.devices.turns import device_turn
from memplan.errors import DeviceError
from memplan.probe.launcher import run_trial
from memplan.progress import TrialAdvanced
from memplan.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan.children import Template
    from memplan.devices.cards import DeviceSpec
    from memplan.probe.trials import TrialProgress, TrialRequest
    from memplan.progress import Observer
    from memplan.results import Outcome

# Growth of others by less than this share of the budget does not count as a disturbance.
_DISTURBING_SHARE = 0.02
# The driver takes a moment to release what a process held that has just ended.
_SETTLES_WITHIN_S = 2.0
_LOOK_EVERY_S = 0.1


def turn_name(device: DeviceSpec) -> str:
    """Return the name under which turns on a device are taken: a card's UUID, or the kind where there is none."""
    if device.live_index is None:
        return str(device.kind)
    try:
        return card_uuid(device.live_index)
    except DeviceError:
        return f"cuda{device.live_index}"


def settled_bytes(device: DeviceSpec) -> int | None:
    """Return what is in use on a card once that has settled; None on the CPU, or where a card does not report it."""
    if device.live_index is None:
        return None
    read_bytes = device_used_bytes(device.live_index).read_bytes
    deadline = time.monotonic() + _SETTLES_WITHIN_S
    while read_bytes is not None and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
        earlier_bytes, read_bytes = read_bytes, device_used_bytes(device.live_index).read_bytes
        if read_bytes == earlier_bytes:
            break
    return read_bytes


def with_neighbours(outcome: Outcome, *, before_bytes: int | None, after_bytes: int | None) -> Outcome:
    """Add to an outcome what others used on the device before and after it, and say so where they grew."""
    found = replace(outcome, others_before_bytes=before_bytes, others_after_bytes=after_bytes)
    if before_bytes is None or after_bytes is None or not outcome.kind.is_too_large or after_bytes <= before_bytes:
        return found
    grew = f"others on the card went from {format_bytes(before_bytes)} to {format_bytes(after_bytes)} meanwhile"
    return replace(found, evidence=f"{outcome.evidence}; {grew}")


def was_disturbed(outcome: Outcome, *, budget_bytes: int) -> bool:
    """Whether a trial ran out of memory while others took noticeably more of the card."""
    before_bytes, after_bytes = outcome.others_before_bytes, outcome.others_after_bytes
    if before_bytes is None or after_bytes is None or not outcome.kind.is_too_large:
        return False
    return after_bytes - before_bytes > _DISTURBING_SHARE * budget_bytes


def others_bytes(outcome: Outcome) -> int | None:
    """What others used on the device during a trial, by its own readings or by those around it; None where unknown."""
    measured = outcome.measurement
    if measured is not None:
        return measured.peak_device_bytes - measured.peak_process_bytes
    around = [each for each in (outcome.others_before_bytes, outcome.others_after_bytes) if each is not None]
    return max(around, default=None)


def run_in_turn(
    request: TrialRequest, *, notify: Callable[[str], None], observer: Observer, template: Template | None
) -> Outcome:
    """Run a trial once it is this process's turn on the device, with what others use read before and after it.

    Args:
        request: what to run.
        notify: called with a sentence where there is something to wait for.
        observer: called as the trial advances.
        template: forks the trial's process; None starts it afresh.
    """
    devices = [replace(request.device, live_index=index) for index in request.card_indices] or [request.device]
    with contextlib.ExitStack() as turns:
        for resource in sorted(map(turn_name, devices)):  # so that no two wait for each other
            turns.enter_context(device_turn(resource, notify=notify))
        before_bytes = [settled_bytes(each) for each in devices]
        outcome = run_trial(request, on_progress=_follower(observer), template=template)
        after_bytes = [settled_bytes(each) for each in devices]
    before, after = tightest(before_bytes, after_bytes)
    return with_neighbours(outcome, before_bytes=before, after_bytes=after)


def tightest(before_bytes: Sequence[int | None], after_bytes: Sequence[int | None]) -> tuple[int | None, int | None]:
    """Return what others used before and after a trial on the card where they leave least; None where unknown."""
    return max(zip(before_bytes, after_bytes, strict=True), key=lambda pair: max(pair[0] or 0, pair[1] or 0))


def _follower(observer: Observer) -> Callable[[TrialProgress], None]:
    """Return a callback that passes a trial's progress to an observer."""

    def follow(progress: TrialProgress) -> None:
        done = 0 if progress.step is None else progress.step - 1
        observer(TrialAdvanced(doing=str(progress.phase), done_steps=done, total_steps=progress.step_count or 1))

    return follow
