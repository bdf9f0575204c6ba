"""What a reader of a plan for a training command should know, as notes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from memplan.planning.line_to_run import flags_without_placeholder, takes_more_flags
from memplan.probe.commands.template import PlaceholderName, parse_template
from memplan.workload import TrainingCommand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.patches import ConfigPatch
    from memplan.planning.subject import Subject
    from memplan.probe.commands.template import CommandTemplate
    from memplan.recipe import Recipe
    from memplan.results import Measurement, Trial

_NOTICEABLE_SHARE = 0.01  # two runs of one setting differ by half as much
_NOTICEABLE_TIME = 0.1
_MANY_TIMES, _SLIGHTLY = 32, 0.25  # so many times the samples cannot take so little more
_NOTICEABLY_FEWER = 1.5
_NOTICEABLE_WAIT_S = 60.0


def command_notes(subject: Subject, trials: Sequence[Trial], recipe: Recipe) -> tuple[str, ...]:
    """What a reader of the plan for a command, which recommends a recipe, should know, one phrase each."""
    if not isinstance(subject.source, TrainingCommand):
        return ()
    template = parse_template(subject.source.template)
    notes = _note_on_flat_peaks(trials, template) or _note_on_unfilled_batches(trials)
    if subject.config is None and recipe.global_batch_size != subject.current.global_batch_size:
        notes.append("memplan does not know the learning rate; scale it with the samples per optimizer step")
    if not template.has(PlaceholderName.PRECISION) and subject.config is None:
        notes.append(f"the precision is the command's own and is shown as {subject.current.precision}")
    if subject.as_written(recipe).precision != recipe.precision:
        notes.append(f"the config has no word for {recipe.precision}: only the line to run sets it")
    notes += _note_on_slow_starts(trials, subject.source.steps)
    notes.append(_note_on_what_follows(trials, subject.source.steps))
    if template.has(PlaceholderName.STEPS):
        notes.append("the line to run leaves {steps} to you: put the length of your training there")
    return tuple(notes)


def notes_on_line_to_run(subject: Subject, recipe: Recipe, patch: ConfigPatch | None) -> tuple[str, ...]:
    """Name what the line to run needs of a change: the patched config, or flags or a rate without a placeholder."""
    config, source = subject.config, subject.source
    if config is None or not isinstance(source, TrainingCommand):
        return ()
    if patch is None or patch.files:
        template = parse_template(source.template)
        if patch is not None and template.has(PlaceholderName.PATCHED_CONFIG):
            return ("the line to run reads the config: apply the patch first",)
        return _note_on_silent_rate(subject, template, recipe, patch)
    left = "" if takes_more_flags(source) else flags_without_placeholder(subject, patch)
    return (f"the line to run leaves out {left}, which belongs to the change",) if left else ()


def _note_on_flat_peaks(trials: Sequence[Trial], template: CommandTemplate) -> list[str]:
    """Doubt that the command uses the micro-batch, if twice the samples, or many times, hardly change peak and time."""
    read = [(trial.recipe.micro_batch_size, found) for trial in trials if (found := trial.outcome.measurement)]
    read.sort(key=lambda each: (each[0], each[1].peak_process_bytes))
    if not read or read[-1][0] < 2 * read[0][0]:
        return []
    (fewest, least), (most, largest) = read[0], read[-1]
    share, time = (_SLIGHTLY, _SLIGHTLY) if most >= _MANY_TIMES * fewest else (_NOTICEABLE_SHARE, _NOTICEABLE_TIME)
    is_as_large = largest.peak_process_bytes <= least.peak_process_bytes * (1 + share)
    if not (is_as_large and _is_as_long(least, largest, time)):
        return []
    placeholder = f"{{{template.batch_placeholder}}}"
    return [
        f"the peaks at micro-batch {fewest} and {most} are alike: check that the script heeds what {placeholder} sets"
    ]


def _note_on_unfilled_batches(trials: Sequence[Trial]) -> list[str]:
    """Doubt that a step has as many samples as the largest micro-batch, if fewer took as much memory and time."""
    read = [(trial.recipe, found) for trial in trials if (found := trial.outcome.measurement)]
    most = max((recipe.micro_batch_size for recipe, _ in read), default=0)
    largest = [each for each in read if each[0].micro_batch_size == most]
    smaller = [each for each in read if _NOTICEABLY_FEWER * each[0].micro_batch_size <= most]
    for (recipe, fewer), (other, more) in product(smaller, largest):
        is_alone = replace(recipe, micro_batch_size=most, learning_rate=other.learning_rate) == other
        if is_alone and _are_alike(fewer, more):
            sizes = f"{recipe.micro_batch_size} and {most}"
            doubt = "check that the script has as many samples for a step; else it trains fewer samples/s than shown"
            return [f"steps of micro-batch {sizes} take the same memory and time: {doubt}"]
    return []


def _are_alike(fewer: Measurement, more: Measurement) -> bool:
    is_as_large = more.peak_allocated_bytes <= fewer.peak_allocated_bytes * (1 + _NOTICEABLE_SHARE)
    return is_as_large and _is_as_long(fewer, more)


def _is_as_long(fewer: Measurement, more: Measurement, tolerance: float = _NOTICEABLE_TIME) -> bool:
    return median(more.step_times_s) <= median(fewer.step_times_s) * (1 + tolerance)


def _note_on_what_follows(trials: Sequence[Trial], steps: int) -> str:
    """Say that only optimizer steps were measured, and where the script ended by itself before it took them all."""
    read = [(found.steps_taken or steps, each) for each in trials if (found := each.outcome.measurement)]
    taken, earliest = min(read, key=lambda each: each[0], default=(steps, None))
    if earliest is not None and taken < steps:
        ended = f"at {earliest.recipe} the script ended by itself after {taken} optimizer steps, of {steps} asked for"
        return f"{ended}: what it does after them, such as evaluation, was not measured"
    return f"what comes after {steps} optimizer steps, such as evaluation, was not measured"


def _note_on_slow_starts(trials: Sequence[Trial], steps: int) -> list[str]:
    """Say how much of the trials' time was spent outside their steps, where that is most of a long time."""
    read = [(trial.outcome.duration_s, found) for trial in trials if (found := trial.outcome.measurement)]
    total_s = sum(duration_s for duration_s, _ in read)
    outside_s = total_s - sum((found.steps_taken or steps) * fmean(found.step_times_s) for _, found in read)
    if outside_s < max(_NOTICEABLE_WAIT_S, total_s / 2):
        return []
    share = f"{outside_s:.0f} of the trials' {total_s:.0f} s passed outside of optimizer steps"
    return [f"{share}: what the script does before them, such as evaluation, is best left out by its own options"]


def _note_on_silent_rate(
    subject: Subject, template: CommandTemplate, recipe: Recipe, patch: ConfigPatch | None
) -> tuple[str, ...]:
    """Say that the line to run keeps the old rate where the command takes none."""
    if recipe.learning_rate == subject.current.learning_rate or template.sets(PlaceholderName.LEARNING_RATE):
        return ()
    remedy = f"{'' if patch is None else _how_to_apply(patch)}set {recipe.learning_rate:g} there"
    return (f"the line to run leaves the learning rate as it is: {remedy}",)


def _how_to_apply(patch: ConfigPatch) -> str:
    """Say that the patch does it too; where all its files are new, the line must name the first of them."""
    if any(each.original_text is not None for each in patch.files):
        return "apply the patch, or "
    return f"apply the patch and let the line read {Path(patch.files[0].path).name}, or "
