"""What a reader of a plan for a training command should know, as notes."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, TypeAlias

from memplan.configs import KnobName, expressible
from memplan.planning.line_to_run import flags_without_placeholder, takes_more_flags
from memplan.probe.commands.endings import ENDED_BY_ITSELF
from memplan.probe.commands.template import PlaceholderName, parse_template
from memplan.recipe import Precision
from memplan.workload import TrainingCommand

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from memplan.configs import UserConfig
    from memplan.patches import ConfigPatch
    from memplan.planning.subject import Subject
    from memplan.probe.commands.template import CommandTemplate
    from memplan.recipe import Recipe
    from memplan.results import Measurement, Trial

    _SizeRun: TypeAlias = tuple[int, Measurement]  # a micro-batch, and what was measured of it

_SAME_RATE = 1e-6
_NOTICEABLE_SHARE = 0.01  # two runs of one setting differ by half as much
_NOTICEABLE_TIME = 0.1
_MANY_TIMES, _SLIGHTLY = 32, 0.25  # so many times the samples cannot take so little more
_TWICE = 1.0
_NOTICEABLY_FEWER = 1.5
_NOTICEABLE_WAIT_S = 60.0


def command_notes(subject: Subject, trials: Sequence[Trial], recipe: Recipe) -> tuple[str, ...]:
    """What a reader of the plan for a command, which recommends a recipe, should know, one phrase each."""
    if not isinstance(subject.source, TrainingCommand):
        return ()
    template = parse_template(subject.source.template)
    notes = _note_on_flat_peaks(trials, template) or _note_on_unfilled_batches(trials)
    if subject.config is None and recipe.global_batch_size != subject.current.global_batch_size:
        notes.append(_note_on_own_rate(trials))
    if not template.has(PlaceholderName.PRECISION) and not _may_say_precision(subject.config):
        notes.append(f"the precision is the command's own and is shown as {subject.current.precision}")
    if recipe.learning_rate != subject.current.learning_rate:
        notes += _note_on_other_rate(subject.current, trials)
    if subject.as_written(recipe).precision != recipe.precision:
        notes.append(f"the config has no word for {recipe.precision}: only the line to run sets it")
    notes += _note_on_slow_starts(trials, subject.source.steps)
    notes.append(_note_on_what_follows(trials, subject.source.steps))
    notes += _note_on_endings(trials, subject.source.steps)
    if template.has(PlaceholderName.STEPS):
        notes.append("the line to run leaves {steps} to you: put the length of your training there")
    return tuple(notes)


def reason_to_stay(subject: Subject, trials: Sequence[Trial]) -> str | None:
    """Say why a command's recipe is left as it is: many times its samples take no more memory and time; else None."""
    ends = _ends(trials)
    if ends is None or not isinstance(subject.source, TrainingCommand) or not _heed_no_size(*ends):
        return None
    (fewest, _), (most, _) = ends
    return (
        f"Steps of micro-batch {fewest} and {most} take the same memory, and hardly more time: nothing shows that the "
        "script trains on more samples, so that the recipe stays as it is"
    )


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
    left = "" if takes_more_flags(subject) else flags_without_placeholder(subject, patch)
    return (f"the line to run leaves out {left}, which belongs to the change",) if left else ()


def _note_on_flat_peaks(trials: Sequence[Trial], template: CommandTemplate) -> list[str]:
    """Doubt that the command uses the micro-batch, if twice the samples, or many times, hardly change peak and time."""
    ends = _ends(trials)
    if ends is None:
        return []
    (fewest, least), (most, largest) = ends
    share, time = (_SLIGHTLY, _SLIGHTLY) if most >= _MANY_TIMES * fewest else (_NOTICEABLE_SHARE, _NOTICEABLE_TIME)
    if not _is_hardly_more(least, largest, share, time) and not _heed_no_size(*ends):
        return []
    placeholder = f"{{{template.batch_placeholder}}}"
    return [
        f"the peaks at micro-batch {fewest} and {most} are alike: check that the script heeds what {placeholder} sets"
    ]


def _ends(trials: Sequence[Trial]) -> tuple[_SizeRun, _SizeRun] | None:
    """Return the smallest and the largest micro-batch that ran; None unless one has twice the samples of the other."""
    read = [(trial.recipe.micro_batch_size, found) for trial in trials if (found := trial.outcome.measurement)]
    read.sort(key=lambda each: (each[0], each[1].peak_process_bytes))
    return (read[0], read[-1]) if read and read[-1][0] >= 2 * read[0][0] else None


def _heed_no_size(smallest: _SizeRun, most_samples: _SizeRun) -> bool:
    """Whether many times the samples took no more memory and at most twice the time: other programs slow steps down."""
    (fewest, least), (most, largest) = smallest, most_samples
    return most >= _MANY_TIMES * fewest and _is_hardly_more(least, largest, _NOTICEABLE_SHARE, _TWICE)


def _is_hardly_more(least: Measurement, largest: Measurement, share: float, time: float) -> bool:
    """Whether peak and fastest step, which nothing disturbed, are at most these shares above those of the least."""
    is_as_large = largest.peak_process_bytes <= least.peak_process_bytes * (1 + share)
    return is_as_large and min(largest.step_times_s) <= min(least.step_times_s) * (1 + time)


def _note_on_unfilled_batches(trials: Sequence[Trial]) -> list[str]:
    """Doubt that a step has as many samples as the largest micro-batch, if fewer took as much memory and time."""
    if any(each.outcome.available_samples is not None for each in trials):  # then they are counted
        return []
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
    return is_as_large and median(more.step_times_s) <= median(fewer.step_times_s) * (1 + _NOTICEABLE_TIME)


def _note_on_own_rate(trials: Sequence[Trial]) -> str:
    """Say what becomes of a rate that the script sets: it may follow the batch by itself, or is to be scaled there.

    Where its schedule says one thing and its steps another, as in a warm-up of a few epochs, neither is said.
    """
    read = [(each.recipe.global_batch_size, found) for each in trials if (found := each.outcome.measurement)]
    rates = {size: found.learning_rate for size, found in read if found.learning_rate is not None}
    taken = {size: found.highest_rate_taken for size, found in read if found.highest_rate_taken is not None}
    if len(rates) > 1 and not _are_equal(rates.values()):
        (fewest, first), (most, last) = min(rates.items()), max(rates.items())
        told = f"{first:.4g} at {fewest} samples per optimizer step, {last:.4g} at {most}"
        return f"the script itself sets its learning rate by the batch: {told}"
    if len(taken) > 1 and _are_equal(taken.values()):
        return "the script's learning rate is the same at any batch: scale it from the samples that it was chosen for"
    return "memplan does not know the learning rate; scale it with the samples per optimizer step"


def _note_on_other_rate(current: Recipe, trials: Sequence[Trial]) -> list[str]:
    """Doubt that the script takes the config's rate, if its optimizer had another."""
    read = [each.outcome.measurement for each in trials if each.recipe == current]
    rates = [found.learning_rate for found in read if found is not None and found.learning_rate is not None]
    if not rates or current.learning_rate is None or _are_equal((rates[0], current.learning_rate)):
        return []
    had = f"the optimizer's rate was {rates[0]:.4g}, where the config says {current.learning_rate:g}"
    return [f"{had}: check that the script takes it from there, before you take the new one"]


def _may_say_precision(config: UserConfig | None) -> bool:
    """Whether a config has words for several precisions, so that its own is known; or none can be written into it."""
    if config is None:
        return False
    recipes = [replace(config.recipe, precision=each) for each in Precision]
    said = [each.precision for each in recipes if expressible(config, each) is None]
    return said != [config.recipe.precision]


def _are_equal(rates: Collection[float]) -> bool:
    lowest, highest = min(rates), max(rates)
    return math.isclose(lowest, highest, rel_tol=_SAME_RATE)


def _note_on_endings(trials: Sequence[Trial], steps: int) -> list[str]:
    """Name the trials in which the script came to its own end, and so wrote what it writes there."""
    ended = [str(each.number) for each in trials if _came_to_its_end(each, steps)]
    if not ended:
        return []
    which = f"trial {ended[0]}" if len(ended) == 1 else f"trials {', '.join(ended)}"
    return [f"the script came to its end in {which}: what it writes there, such as a checkpoint, is written"]


def _came_to_its_end(trial: Trial, steps: int) -> bool:
    measured = trial.outcome.measurement
    taken = steps if measured is None else measured.steps_taken or steps
    return taken < steps or ENDED_BY_ITSELF in trial.outcome.evidence


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
    what = "what the script does besides, such as evaluation before the first, is best left out by its own options"
    return [f"{share}: {what}"]


def _note_on_silent_rate(
    subject: Subject, template: CommandTemplate, recipe: Recipe, patch: ConfigPatch | None
) -> tuple[str, ...]:
    """Say that the line to run keeps the old rate where the command takes none."""
    if recipe.learning_rate == subject.current.learning_rate or template.sets(PlaceholderName.LEARNING_RATE):
        return ()
    if patch is not None and subject.config is not None and subject.config.is_said(KnobName.LEARNING_RATE):
        return ()  # the line says the new one
    remedy = f"{'' if patch is None else _how_to_apply(patch)}set {recipe.learning_rate:g} there"
    return (f"the line to run leaves the learning rate as it is: {remedy}",)


def _how_to_apply(patch: ConfigPatch) -> str:
    """Say that the patch does it too; where all its files are new, the line must name the first of them."""
    if any(each.original_text is not None for each in patch.files):
        return "apply the patch, or "
    return f"apply the patch and let the line read {Path(patch.files[0].path).name}, or "
