"""Cached plans: one that was made before for the same question is returned where it still holds.

What a fingerprint cannot hold is checked again: what else uses the device now, and the state of the files that
the plan's patch changes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.configs.documents import digest_of
from memplan.devices.driver import device_used_bytes
from memplan.errors import PatchError, StoreError
from memplan.planning.writing.data_loader import loader_changes
from memplan.planning.writing.patching import write_patch

if TYPE_CHECKING:
    from memplan.devices.cards import DeviceSpec
    from memplan.patches import ConfigPatch
    from memplan.planning.question import Question
    from memplan.plans import Plan
    from memplan.probe.journal import Journal
    from memplan.recommend.band import Band


def recalled(journal: Journal, fingerprint: str, question: Question) -> Plan | None:
    """Return the plan stored for a fingerprint, marked as cached; None where there is none, or it no longer holds."""
    try:
        stored = journal.find_plan(fingerprint)
    except StoreError:  # written by another version; opening a run says what is wrong where that matters
        return None
    if stored is None or stored.plan is None or not _still_fits(stored.plan, question.band, question.device):
        return None
    request = replace(stored.plan.request, store=journal.path.parent.absolute())
    plan = replace(stored.plan, cached_from=None, request=request)
    if plan.config_patch is not None and not _is_current(plan.config_patch):
        try:
            plan = replace(plan, config_patch=_patch_anew(plan, question))
        except PatchError:
            return None
    journal.recall(stored.run_id, plan)
    return replace(plan, cached_from=stored.created_at)


def _patch_anew(plan: Plan, question: Question) -> ConfigPatch | None:
    """Write a plan's patch for the files as they are now."""
    config = question.subject.config
    return write_patch(
        plan.recipe,
        question.subject,
        plan.request,
        why=plan.evidence,
        device_total_bytes=plan.device_total_bytes,
        loader=loader_changes(config, question.device, plan.estimate) if plan.request.change_loader else None,
    )


def _still_fits(plan: Plan, band: Band, device: DeviceSpec) -> bool:
    """Whether a plan's peak is still where it was in the band, given the memory that others use now."""
    measured = plan.chosen.outcome.measurement if plan.chosen else None
    if measured is None:
        return plan.device_total_bytes == band.total_bytes
    others_bytes = measured.peak_device_bytes - measured.peak_process_bytes
    if device.live_index is not None:
        used_bytes = device_used_bytes(device.live_index).read_bytes
        others_bytes = others_bytes if used_bytes is None else used_bytes
    then = replace(band, total_bytes=plan.device_total_bytes).place(measured.peak_device_bytes)
    return band.place(measured.peak_process_bytes + others_bytes) is then


def _is_current(patch: ConfigPatch) -> bool:
    """Whether the files that a patch changes are as they were when it was written."""
    return all(digest_of(Path(each.path)) == each.original_sha256 for each in patch.files)
