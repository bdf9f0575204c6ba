"""The measurement of a command trial, from what its processes reported and what was seen from outside. Pure.

On the CPU the process peak is the resident peak of the process that trains, plus the most that its other processes
(launchers, data-loader workers) were seen to hold without sharing it; *allocated* is what exceeds interpreter and
libraries. On a card it is the reserved peak plus what the driver charges beyond it. Not counted: what comes after the
last step, such as evaluation; the losses themselves, which a script scales and accumulates as it likes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from memplan.probe.commands.batch_source import batches_of_step, samples_of_split, samples_short_of
from memplan.probe.commands.events import BatchUnfilled, BytesHeld, HookFailed, OptimizerBuilt, StepEnded, StepsFinished
from memplan.probe.commands.timed_steps import NOTHING_TIMED, time_steps, usual_passes
from memplan.probe.readings import search_note
from memplan.results import BreakdownBytes, Measurement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan.probe.commands.events import Event
    from memplan.probe.commands.timed_steps import StepTiming
    from memplan.recipe import Recipe

T = TypeVar("T")

_MORE_PASSES = (
    "optimizer steps make more backward passes than asked for, each counted as a micro-batch of its own: does the "
    "script accumulate by itself, or go backward from several losses?"
)
_PASSES_OVER_ONE = "optimizer steps go backward several times over one batch, which counts once"
_SPLIT = "the script's data loader makes batches of {samples} samples, not {asked}: it splits or bounds what it is told"
_FEWER_PASSES = (
    "optimizer steps make fewer backward passes than asked for: does the script heed what {accumulation_steps} sets?"
)
_NO_OPTIMIZER = (
    "no optimizer of torch's was made, as where updates are made by hand or by a framework's own: each backward pass "
    "counts as a step"
)
_PARTIAL_BATCHES = (
    "steps of two lengths take turns, as where the last batch of an epoch has fewer samples: the longer ones are timed"
)
_STILL_RISING = (
    "the peak still rose in the second half of a trial's steps, and later batches may take more: more --steps show it"
)
_RISE_SHARE, _STEADY_FROM = 0.03, 3
_WARMUP_SHARE = 3  # a third of the steps, two at least, is warm-up: compilers and autotuners work there


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideReadings:
    """What was seen of a command from outside.

    Args:
        other_processes_bytes: most that the processes which do not train held on the host without sharing it.
        context_bytes: by process that trains, what the driver charges it beyond the allocator's segments.
        others_on_card_bytes: by process that trains, what other users of its card held, the larger of before and after.
    """

    other_processes_bytes: int = 0
    context_bytes: Mapping[int, int] = field(default_factory=dict)
    others_on_card_bytes: Mapping[int, int] = field(default_factory=dict)


def warmup_of(steps: int) -> int:
    """Optimizer steps of a trial that are not timed: a third, but the first two at least and not all."""
    return min(max(2, steps // _WARMUP_SHARE), steps - 1)


def training_pids(events: Sequence[Event]) -> tuple[int, ...]:
    """Processes that stepped, one for each replica, in the order of their first step."""
    return tuple(dict.fromkeys(event.pid for event in events if isinstance(event, StepEnded)))


def measure(
    events: Sequence[Event],
    outside: OutsideReadings,
    *,
    samples_of_pass: int,
    accumulation_steps: int | None,
    usual_context_bytes: int,
) -> Measurement | None:
    """Put a measurement together; None where no process took two steps.

    Args:
        events: what the processes reported, in order.
        outside: what was seen of them.
        samples_of_pass: samples of one forward pass of one replica.
        accumulation_steps: forward passes per optimizer step that the script was told; None where only it knows. Its
            backward passes are counted then, and where they are fewer.
        usual_context_bytes: of the card, where the driver does not tell.
    """
    last = _last_steps(events)
    timing = _timing(events)
    if not timing.durations_s:
        return None
    lead = _lead(last)
    passes = _passes_made(events, accumulation_steps, timing.passes)
    step_s = median(timing.durations_s)
    held = _held(events, lead.pid)
    peaks = _card_peaks(events, last, outside, usual_context_bytes) if lead.card else _host_peaks(events, last, outside)
    return Measurement(
        peak_allocated_bytes=peaks.allocated_bytes,
        peak_reserved_bytes=peaks.reserved_bytes,
        peak_process_bytes=peaks.breakdown.total_bytes,
        peak_device_bytes=peaks.breakdown.total_bytes + peaks.others_bytes,
        breakdown=peaks.breakdown,
        has_own_context=False,
        step_times_s=timing.durations_s,
        samples_per_s=len(last) * samples_of_pass * passes / step_s,
        losses=(),
        alloc_retries=sum(step.card.alloc_retries for step in last.values() if step.card),
        optimizer_name=" + ".join(held.optimizers) or None,
        steps_taken=lead.step,
        learning_rate=held.learning_rate,
        highest_rate_taken=held.highest_rate_taken,
        loss_scale=next((each.loss_scale for each in _of(events, lead.pid, StepsFinished)), None),
    )


def _passes_made(events: Sequence[Event], asked: int | None, timed: int) -> int:
    """Return the passes of a step whose samples count.

    They are fewer than were asked for where a script does not accumulate, and fewer than were made where it goes
    backward several times over one batch.
    """
    optimizers = max((event.optimizers for event in events if isinstance(event, StepEnded)), default=1)
    if optimizers > 1:
        return 1 if asked is None else asked
    counted = min(timed, batches_of_step(_lead_steps(events)) or timed)
    return counted if asked is None else min(asked, counted)


def passes_per_step(events: Sequence[Event]) -> int:
    """Backward passes of a usual step, of the first where there is no other.

    It is 1 where several optimizers make it unclear what belongs to which.
    """
    steps = [event for event in events if isinstance(event, StepEnded)]
    passes = [step.passes for step in steps[1:] or steps if not step.skipped]
    if not passes or steps[-1].optimizers > 1:
        return 1
    return max(usual_passes(passes), 1)


def available_samples(events: Sequence[Event], recipe: Recipe) -> int | None:
    """Return how many samples the data have, where they do not fill a micro-batch; None where they do.

    Where nothing was trained, it is told of any loader that drops what does not fill a batch.
    """
    if steps := _lead_steps(events):
        short = samples_short_of(steps)
        return None if short is None or short[0] != recipe.micro_batch_size else short[1]
    unfilled = [event for event in events if isinstance(event, BatchUnfilled)]
    return next((each.available for each in reversed(unfilled) if each.asked == recipe.micro_batch_size), None)


def samples_of_pass(events: Sequence[Event], recipe: Recipe) -> int:
    """Return how many samples a forward pass has: fewer than a micro-batch where data or script do not fill it."""
    return available_samples(events, recipe) or _samples_of_part(events, recipe) or recipe.micro_batch_size


def _samples_of_part(events: Sequence[Event], recipe: Recipe) -> int | None:
    """Return the samples of a pass where the script splits a micro-batch by itself; else None."""
    if recipe.accumulation_steps > 1:
        return None
    passes = passes_per_step(events)
    return samples_of_split(_lead_steps(events), micro_batch_size=recipe.micro_batch_size, passes=passes)


def first_bad_loss(events: Sequence[Event]) -> int | None:
    """Return the first step behind the warm-up that went backward from a loss which was not finite; None for none."""
    warmup = warmup_of(max((event.step for event in events if isinstance(event, StepEnded)), default=2))
    bad = [event.step for event in events if isinstance(event, StepEnded) and event.is_loss_finite is False]
    return min((step for step in bad if step > warmup), default=None)


def notes_on(events: Sequence[Event], recipe: Recipe) -> tuple[str, ...]:
    """Report where a command deviated from its recipe, or could not be observed; usually nothing."""
    notes, passes, replicas = [], passes_per_step(events), len(training_pids(events))
    if replicas and replicas != recipe.world_size:
        notes.append(
            f"processes that took optimizer steps: {replicas}, replicas planned for: {recipe.world_size}; "
            "--world-size says how many there are"
        )
    if any(isinstance(event, StepEnded) and not event.optimizers for event in events):
        notes.append(_NO_OPTIMIZER)
    elif (samples := _samples_of_part(events, recipe)) is not None:
        notes.append(_SPLIT.format(samples=samples, asked=recipe.micro_batch_size))
    elif replicas and passes > recipe.accumulation_steps:  # without the number, which varies in a warm-up
        batches = batches_of_step(_lead_steps(events))
        notes.append(_MORE_PASSES if batches is None or batches >= passes else _PASSES_OVER_ONE)
    elif replicas and _accumulates_less(events, recipe.accumulation_steps):
        notes.append(_FEWER_PASSES)
    if _timing(events).leaves_out_partial:
        notes.append(_PARTIAL_BATCHES)
    if _still_rises(events):
        notes.append(_STILL_RISING)
    notes += map(search_note, _searched_bytes(events))
    failures = (event.text.splitlines()[-1] for event in events if isinstance(event, HookFailed))
    notes += [f"the script could not be watched all through: {text}" for text in list(failures)[:1]]
    return tuple(notes)


def _accumulates_less(events: Sequence[Event], asked: int) -> bool:
    """Whether every step makes fewer passes than were asked for: those of an epoch's rest may be the usual ones."""
    return all(event.passes < asked for event in events if isinstance(event, StepEnded))


def _searched_bytes(events: Sequence[Event]) -> list[int]:
    """Return the most that a first step held beyond later ones, whose peaks are reset after a search; usually none."""
    cards = [[step.card for step in _of(events, pid, StepEnded) if step.card] for pid in training_pids(events)]
    peaks = [(each[0].reserved_peak_bytes, each[-1].reserved_peak_bytes) for each in cards if each]
    return sorted(first for first, last in peaks if first > last)[-1:]


def _still_rises(events: Sequence[Event]) -> bool:
    """Whether a process's peak rose noticeably in the second half of its steps, from where its state was there on."""
    return any(_rises_late(_of(events, pid, StepEnded)) for pid in training_pids(events))


def _rises_late(steps: Sequence[StepEnded]) -> bool:
    half = max(len(steps) // 2, _STEADY_FROM)
    return len(steps) > half and _peak_bytes(steps[-1]) > _peak_bytes(steps[half - 1]) * (1 + _RISE_SHARE)


def _peak_bytes(step: StepEnded) -> int:
    return step.card.reserved_peak_bytes if step.card else step.resident_peak_bytes


def _last_steps(events: Sequence[Event]) -> dict[int, StepEnded]:
    """Return the last step of each process that stepped."""
    return {pid: _of(events, pid, StepEnded)[-1] for pid in training_pids(events)}


def _lead(last: Mapping[int, StepEnded]) -> StepEnded:
    """Return the last step of the process that took most."""
    return max(last.values(), key=lambda step: step.step)


def _lead_steps(events: Sequence[Event]) -> list[StepEnded]:
    """Return the steps of the process that took most."""
    last = _last_steps(events)
    return _of(events, _lead(last).pid, StepEnded) if last else []


def _timing(events: Sequence[Event]) -> StepTiming:
    """Time the steps of the process that took most, after its warm-up."""
    steps = _lead_steps(events)
    return time_steps(steps, warmup=warmup_of(len(steps))) if len(steps) > 1 else NOTHING_TIMED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peaks:
    allocated_bytes: int
    reserved_bytes: int | None
    breakdown: BreakdownBytes
    others_bytes: int = 0


def _host_peaks(events: Sequence[Event], last: Mapping[int, StepEnded], outside: OutsideReadings) -> _Peaks:
    first_pid = next(iter(last))
    own_bytes = sum(
        step.resident_peak_bytes - (0 if pid == first_pid else step.resident_file_bytes) for pid, step in last.items()
    )
    process_bytes = own_bytes + outside.other_processes_bytes
    known = _known_parts([_held(events, pid) for pid in last])
    before = sum(
        each.resident_bytes - each.parameters_bytes for pid in last for each in _of(events, pid, OptimizerBuilt)[:1]
    )
    context = max(min(before + outside.other_processes_bytes, process_bytes - known.total_bytes), 0)
    allocated_bytes = process_bytes - context
    return _Peaks(
        allocated_bytes=allocated_bytes,
        reserved_bytes=None,
        breakdown=replace(known, temporaries=allocated_bytes - known.total_bytes, context=context),
    )


def _card_peaks(
    events: Sequence[Event], last: Mapping[int, StepEnded], outside: OutsideReadings, usual_context_bytes: int
) -> _Peaks:
    """Peaks of the replica whose card is fullest, by all that use it."""
    cards = {pid: step.card for pid, step in last.items() if step.card is not None}
    contexts = {pid: outside.context_bytes.get(pid, usual_context_bytes) for pid in cards}
    others = outside.others_on_card_bytes
    pid = max(cards, key=lambda each: cards[each].reserved_peak_bytes + contexts[each] + others.get(each, 0))
    card, known = cards[pid], _known_parts([_held(events, pid)])
    return _Peaks(
        allocated_bytes=card.allocated_peak_bytes,
        reserved_bytes=card.reserved_peak_bytes,
        breakdown=replace(
            known,
            temporaries=card.allocated_peak_bytes - known.total_bytes,
            allocator_slack=card.reserved_peak_bytes - card.allocated_peak_bytes,
            context=contexts[pid],
        ),
        others_bytes=others.get(pid, 0),
    )


def _known_parts(held: Sequence[BytesHeld]) -> BreakdownBytes:
    """Add up what processes said their optimizers hold."""
    return BreakdownBytes(
        parameters=sum(each.parameters_bytes for each in held),
        gradients=sum(each.gradients_bytes for each in held),
        optimizer_state=sum(each.optimizer_state_bytes for each in held),
    )


def _held(events: Sequence[Event], pid: int) -> BytesHeld:
    nothing = BytesHeld(pid=pid, optimizers=(), parameters_bytes=0, gradients_bytes=0, optimizer_state_bytes=0)
    return next(iter(reversed(_of(events, pid, BytesHeld))), nothing)


def _of(events: Sequence[Event], pid: int, kind: type[T]) -> list[T]:
    return [event for event in events if event.pid == pid and isinstance(event, kind)]
