"""One stored trial, run again exactly as it was: the same workload, recipe, limits and seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind
from memplan.devices.resolving import resolve_device
from memplan.errors import UsageError
from memplan.planning.trials.neighbours import run_in_turn
from memplan.probe.journal import Journal
from memplan.progress import Notice, TrialStarted

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.probe.trials import TrialRequest
    from memplan.progress import Observer
    from memplan.results import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A stored trial, and the same trial as it ended this time.

    Args:
        run_id: the run the trial belongs to.
        stored: the trial as it was stored.
        again: the same with a new outcome; None where it was only looked up.
    """

    run_id: str
    stored: Trial
    again: Trial | None


def stored_trial(store: Path, run_id: str, number: int) -> Rerun:
    """Look up a stored trial.

    Raises:
        UsageError: there is no such run or trial.
        StoreError: the journal cannot be read.
    """
    stored = Journal(store).load_trial(run_id, number)
    return Rerun(run_id=stored.run_id, stored=stored.trial, again=None)


def _require_same_device(request: TrialRequest, number: int) -> None:
    """Check that what a trial ran on is present: the budget, or cards of the same names at the same numbers."""
    if request.device.kind is DeviceKind.CPU:
        resolve_device("cpu", budget_bytes=request.budget_bytes)
    for index in request.card_indices:
        present = resolve_device(f"cuda:{index}")
        if present.name != request.device.name:
            raise UsageError(
                f"trial {number} ran on {request.device.name}, and cuda:{index} is {present.name} now",
                hint="show it the same card by CUDA_VISIBLE_DEVICES",
            )


def rerun_trial(store: Path, run_id: str, number: int, observer: Observer) -> Rerun:
    """Run a stored trial again, in a process started from nothing; the journal stays as it is.

    Raises:
        UsageError: there is no such run or trial, or its budget is not free any more, or another card has its card's
            number.
        StoreError: the journal cannot be read.
    """
    stored = Journal(store).load_trial(run_id, number)
    request = stored.request
    _require_same_device(request, number)
    observer(TrialStarted(number=number, purpose="again", recipe=request.recipe))
    outcome = run_in_turn(request, notify=lambda text: observer(Notice(text=text)), observer=observer, template=None)
    again = replace(stored.trial, purpose="again", outcome=outcome)
    return Rerun(run_id=stored.run_id, stored=stored.trial, again=again)
