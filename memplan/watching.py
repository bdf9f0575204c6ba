"""What a training really takes, read from within its own process and compared with the plan.

Nothing is changed for it: torch is not imported, CUDA not initialised, and no statistic reset. So the peaks are those
of the whole process so far, or, on a card, since the training itself last called ``reset_peak_memory_stats``. On the
CPU nothing is compared where the process had as much resident before the training.
"""

from __future__ import annotations

import os
import sys
import uuid
import warnings
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from memplan.devices.cards import catalogued_card
from memplan.devices.driver import device_used_bytes, process_used_bytes
from memplan.devices.host_memory import peak_resident_bytes
from memplan.errors import StoreError, UsageError
from memplan.launchers import read_launch
from memplan.plans import Plan
from memplan.probe.journal import Journal
from memplan.recommend.band import REPEATABILITY
from memplan.training_checks import CheckVerdict, TrainingCheck, TrainingPeaks
from memplan.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_CALLER = 3  # whose line a warning names: _checked is called by check or __exit__, and these by the training


class PlanWarning(UserWarning):
    """A training needs more or less memory than was planned."""


def watch(plan: Plan, *, store: str | Path | None = None) -> Watch:
    """Compare what a training really takes with its plan; a context manager.

    At the end of the ``with`` block, and whenever :meth:`Watch.check` is called before, say after the first epoch, the
    device peak is compared with the band. Where it has left the band, one :class:`PlanWarning` says so. The last
    comparison is stored with the plan's run, where ``memplan report`` shows it.

    Args:
        plan: what the training was planned to need.
        store: folder of the journal; None for the one in which the plan is stored.

    Raises:
        UsageError: it is no plan.
    """
    if not isinstance(plan, Plan):
        raise UsageError(f"a {type(plan).__name__} is no plan", hint="pass what memplan.plan(...) returned")
    return Watch(plan, Journal(plan.request.store if store is None else store))


class Watch:
    """One training under way; made by :func:`watch`.

    Args:
        plan: what it was planned to need.
        journal: where the comparison is kept.
    """

    def __init__(self, plan: Plan, journal: Journal) -> None:
        self.plan = plan
        self._journal = journal
        self._name = uuid.uuid4().hex
        self._has_warned = False
        launch = read_launch(os.environ)
        self._rank = launch.rank if launch else 0
        self._peak_before_bytes = peak_resident_bytes()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._checked()

    def check(self) -> TrainingCheck:
        """Compare the peaks so far with the plan, warn where they have left the band, and store the comparison.

        The figures of a training that fails are stored as well. A comparison that cannot be stored is only warned of.
        """
        return self._checked()

    def _checked(self) -> TrainingCheck:
        found = compared(self.plan, read_peaks(self.plan, self._peak_before_bytes), rank=self._rank)
        if found.verdict in (CheckVerdict.ABOVE, CheckVerdict.BELOW) and not self._has_warned:
            self._has_warned = True
            warnings.warn(found.remark, PlanWarning, stacklevel=_CALLER)
        try:
            self._journal.record_check(self.plan.run_id, self._name, found)
        except StoreError as problem:
            warnings.warn(f"the check of the plan is not kept: {problem}", PlanWarning, stacklevel=_CALLER)
        return found


def read_peaks(plan: Plan, peak_before_bytes: int = 0) -> TrainingPeaks | str:
    """Read this process's peaks on the device that a plan is for, or say why they cannot be compared with it.

    Args:
        plan: what the training was planned to need.
        peak_before_bytes: what the process had resident at most before the training.
    """
    cuda = _initialised_cuda()
    if plan.device_name == "cpu":
        if cuda is not None:
            return f"the plan is for the CPU, and the training runs on {cuda.get_device_name()}"
        return _host_peaks(peak_before_bytes)
    if cuda is None:
        return f"the plan is for {plan.device_name}, and the training does not use a card"
    name = str(cuda.get_device_name())
    if not _is_same_card(plan.device_name, name):
        return f"the plan is for {plan.device_name}, and the training runs on {name}"
    return _card_peaks(plan, cuda, name)


def _initialised_cuda() -> Any | None:
    """Return ``torch.cuda`` where this process uses it already; None otherwise."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _is_same_card(planned: str, present: str) -> bool:
    """Whether a plan is for such a card; one of which only the size was given is for any."""
    if planned == present:
        return True
    wanted = catalogued_card(planned)
    return wanted is None or catalogued_card(present) == wanted


def _host_peaks(peak_before_bytes: int) -> TrainingPeaks | str:
    resident_bytes = peak_resident_bytes()
    if resident_bytes <= peak_before_bytes:
        return f"this process took {format_bytes(peak_before_bytes)} before, and the training no more than that"
    return TrainingPeaks(
        device_name="cpu",
        allocated_bytes=None,
        reserved_bytes=None,
        process_bytes=resident_bytes,
        device_bytes=resident_bytes,
    )


def _card_peaks(plan: Plan, cuda: Any, name: str) -> TrainingPeaks:
    """Read the allocator's peaks, and the driver's figures for context and neighbours; else what the plan has seen."""
    index = cuda.current_device()
    card = f"GPU-{cuda.get_device_properties(index).uuid}"  # cards may have another order here (CUDA_DEVICE_ORDER)
    held_bytes, reserved_bytes = cuda.memory_reserved(index), cuda.max_memory_reserved(index)
    measured = plan.chosen.outcome.measurement if plan.chosen else None
    process_bytes = process_used_bytes(card, os.getpid()).read_bytes
    if process_bytes is not None:
        context_bytes = max(process_bytes - held_bytes, 0)
    else:
        breakdown = measured.breakdown if measured else plan.estimate.breakdown if plan.estimate else None
        context_bytes = breakdown.context if breakdown else 0
    card_bytes = device_used_bytes(card).read_bytes
    others_bytes = measured.peak_device_bytes - measured.peak_process_bytes if measured else 0
    if card_bytes is not None:
        others_bytes = max(card_bytes - held_bytes - context_bytes, 0)
    return TrainingPeaks(
        device_name=name,
        allocated_bytes=cuda.max_memory_allocated(index),
        reserved_bytes=reserved_bytes,
        process_bytes=reserved_bytes + context_bytes,
        device_bytes=reserved_bytes + context_bytes + others_bytes,
    )


def compared(plan: Plan, peaks: TrainingPeaks | str, *, rank: int) -> TrainingCheck:
    """Say where peaks lie against a plan's band; a text says why there are none, and becomes the remark."""
    if isinstance(peaks, str):
        verdict, remark, read = CheckVerdict.NOT_COMPARED, peaks, None
    else:
        verdict, read = verdict_on(plan, peaks.device_bytes), peaks
        remark = _remark(plan, peaks.device_bytes, verdict)
    return TrainingCheck(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        rank=rank,
        peaks=read,
        planned_device_bytes=_planned_bytes(plan),
        device_total_bytes=plan.device_total_bytes,
        verdict=verdict,
        remark=remark,
    )


def verdict_on(plan: Plan, device_bytes: int) -> CheckVerdict:
    """Say where a device peak lies; below the band counts only where it is below what the plan promised, too."""
    share, promised_bytes = device_bytes / plan.device_total_bytes, _planned_bytes(plan)
    if share > plan.max_utilisation:
        return CheckVerdict.ABOVE
    promised = plan.min_utilisation if promised_bytes is None else promised_bytes / plan.device_total_bytes
    if share < min(plan.min_utilisation, promised - REPEATABILITY):
        return CheckVerdict.BELOW
    return CheckVerdict.INSIDE if share >= plan.min_utilisation else CheckVerdict.AS_PLANNED


def _planned_bytes(plan: Plan) -> int | None:
    """Device peak that a plan has seen of its recipe, or else predicts; None where it knows none."""
    if plan.chosen is not None and plan.chosen.outcome.measurement is not None:
        return plan.chosen.outcome.measurement.peak_device_bytes
    return plan.estimate.peak_process_bytes if plan.estimate is not None else None


def _remark(plan: Plan, device_bytes: int, verdict: CheckVerdict) -> str:
    planned = _planned_bytes(plan)
    told = "" if planned is None else f"; planned were {format_bytes(planned)}"
    edges = f"{plan.min_utilisation:.0%} to {plan.max_utilisation:.0%}"
    share = device_bytes / plan.device_total_bytes
    seen = f"the training peaks at {format_bytes(device_bytes)}, {share:.0%} of {format_bytes(plan.device_total_bytes)}"
    return f"{seen}: {verdict} ({edges}){told}"
