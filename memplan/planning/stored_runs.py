"""Runs, plans and patches read back from the journal, to be shown, applied or checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.errors import PatchError, UsageError
from memplan.probe.journal import Journal
from memplan.report.facts import report_run
from memplan.results import RunStatus

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.patches import ConfigPatch
    from memplan.plans import Plan
    from memplan.report.facts import RunReport


def stored_report(store: Path, run_id: str) -> RunReport:
    """Read the facts of a run, finished or interrupted.

    Raises:
        UsageError: there is no such run.
        StoreError: the journal cannot be read.
    """
    stored = Journal(store).load(run_id)
    return report_run(
        stored.run_id,
        stored.trials,
        stored.plan,
        checks=stored.checks,
        status=stored.status,
        failure=stored.failure,
    )


def stored_plan(store: Path, run_id: str) -> Plan:
    """Return the plan of a run.

    Raises:
        UsageError: there is no such run, or it has no plan.
        StoreError: the journal cannot be read.
    """
    stored = Journal(store).load(run_id)
    if stored.plan is None:
        raise UsageError(f"run {stored.run_id} came to no plan", hint="make one, or name another run")
    return stored.plan


def stored_patch(store: Path, run_id: str) -> ConfigPatch:
    """Return the patch of a run's plan.

    Raises:
        UsageError: there is no such run.
        StoreError: the journal cannot be read.
        PatchError: the run has no patch.
    """
    journal = Journal(store)
    stored = journal.load(run_id)
    if stored.status in (RunStatus.RUNNING, RunStatus.INTERRUPTED):
        hints = ("the same probe command resumes it", _last_patched(journal))
        raise PatchError(f"run {stored.run_id} was not finished", hint="; ".join(filter(None, hints)))
    if stored.plan is None or stored.plan.config_patch is None:
        why = _why_without_patch(stored.plan)
        raise PatchError(f"run {stored.run_id} has no patch: {why}", hint=_last_patched(journal))
    return stored.plan.config_patch


def _last_patched(journal: Journal) -> str | None:
    """Name the last run with a patch; None where there is none."""
    patched = (each.run_id for each in journal.runs() if each.plan is not None and each.plan.config_patch)
    last = next(patched, None)
    return None if last is None else f"the last run with a patch is {last}"


def _why_without_patch(plan: Plan | None) -> str:
    if plan is None:
        return "it came to no plan"
    if plan.config_path is None:
        return "it has no config to change"
    return "none could be made" if plan.changes_anything else "its plan changes nothing"
