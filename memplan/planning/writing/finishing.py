"""From a recommendation to the finished plan: write the patch and collect every note."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.errors import PatchError
from memplan.planning.command_notes import notes_on_line_to_run
from memplan.planning.evaluation_peak import evaluation_peak_notes
from memplan.planning.line_to_run import command_to_run
from memplan.planning.writing.data_loader import loader_changes, loader_notes
from memplan.planning.writing.fragmentation import fragmentation_notes
from memplan.planning.writing.patching import write_patch
from memplan.planning.writing.rate_check import with_proven_rate
from memplan.plans import Plan, evidence_of

if TYPE_CHECKING:
    from memplan.children import Template
    from memplan.patches import ConfigPatch
    from memplan.planning.question import Question
    from memplan.planning.recommendation import Recommendation


def finished_plan(wanted: Recommendation, question: Question, *, run_id: str, template: Template) -> Plan:
    """Write the patch for what is recommended, and return the plan with it.

    Args:
        wanted: what is recommended.
        question: what was asked.
        run_id: under which the run is stored.
        template: a template of trials, which forks the child that looks at the optimizer.
    """
    patch, trouble = _patch(wanted, question, template)
    subject, request, device = question.subject, question.request, question.device
    config, estimate = subject.config, wanted.estimate
    notes = (
        *wanted.notes,
        *(note for trial in wanted.trials for note in trial.outcome.notes),
        *trouble,
        *notes_on_line_to_run(subject, wanted.recipe, patch),
        *(config.notes if config else ()),
        *loader_notes(config, device, wanted, patch, is_asked_for=request.change_loader),
        *evaluation_peak_notes([estimate]),
        *(fragmentation_notes(estimate) if estimate else ()),
        *(estimate.notes if estimate else ()),
    )
    return Plan(
        run_id=run_id,
        workload_name=estimate.workload_name if estimate else subject.label,
        device_name=device.name,
        device_total_bytes=device.total_bytes,
        min_utilisation=request.min_utilisation,
        max_utilisation=request.max_utilisation,
        current=subject.current,
        recipe=wanted.recipe,
        chosen=wanted.chosen,
        estimate=estimate,
        trials=wanted.trials,
        precisions=wanted.verdicts,
        reasons=wanted.reasons,
        config_patch=patch,
        notes=tuple(dict.fromkeys(notes)),
        request=replace(request, store=request.store.absolute()),
        config_path=str(config.path) if config else None,
        command=command_to_run(subject, wanted.recipe, patch),
    )


def _patch(
    wanted: Recommendation, question: Question, template: Template
) -> tuple[ConfigPatch | None, tuple[str, ...]]:
    """Write the patch; an obstacle to that becomes a note, since the plan is of use without it."""
    subject, request, device = question.subject, question.request, question.device
    if subject.unwritable is not None:
        return None, (f"no patch: {subject.unwritable}",)
    write = functools.partial(
        write_patch,
        subject=subject,
        request=request,
        why=evidence_of(wanted.chosen, wanted.estimate, device.total_bytes),
        device_total_bytes=device.total_bytes,
        loader=loader_changes(subject.config, device, wanted.estimate) if request.change_loader else {},
    )
    try:
        patch = write(wanted.recipe)
        if patch is None:
            return None, ()
        patch, remark = with_proven_rate(patch, wanted.recipe, subject, write, device=device, template=template)
    except PatchError as error:
        return None, (f"no patch could be written: {error}",)
    return patch, () if remark is None else (remark,)
