"""One live trial, in the process made for it: build, warm up, time, attribute, and answer.

Imports torch; child processes only.
"""

from __future__ import annotations

import statistics
import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.configs.workloads import let_go_of_payload, load_workload
from memplan.devices.cards import DeviceKind
from memplan.errors import DeviceError, WorkloadError
from memplan.probe.compilation import CompilationReports, stop_compiling
from memplan.probe.cpu_readings import CpuReadings
from memplan.probe.cuda_readings import CudaReadings
from memplan.probe.failures import (
    UserCodeError,
    blamed_on_user,
    classify_failure,
    told_in_one_line,
    what_was_raised,
)
from memplan.probe.loader_speed import time_loader
from memplan.probe.readings import growth_note
from memplan.probe.training_loop import build_training, run_evaluation, run_optimizer_step
from memplan.probe.trials import (
    MOST_SKIPPED_STEPS,
    UNTIMED_LOADER_NOTE,
    TrialNotes,
    TrialPhase,
    TrialProgress,
    TrialReadings,
    TrialRequest,
    TrialVerdict,
)
from memplan.results import LoaderSpeed, Measurement, OutcomeKind, TypicalStep
from memplan.worst_case import notes_on_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from memplan.probe.readings import DevicePeaks, DeviceReadings
    from memplan.probe.training_loop import TrainingState

_FAILED_EVALUATION = "evaluation failed and is in no peak: {evidence}"
_TYPICAL_STEPS = 3
_MOST_TIMED_STEPS = 20


def run_request(request: TrialRequest, reply: Callable[[object], None]) -> None:
    """Run the trial and reply with :class:`TrialProgress` values and ``TrialReadings``, or one ``TrialVerdict``.

    Readings are sent before the attributing step and again, with the breakdown, after it. A device that cannot be used
    at all is reported as the ``DeviceError`` that says why.
    """
    readings = _readings_for(request)
    if not request.runs_compiled:
        stop_compiling()
    reply = CompilationReports(reply)
    try:
        state, measurement = _run_trial(request, readings, reply)
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, and everything is an outcome
        reply(_told_of(error, readings))
        return
    reply(TrialReadings(measurement=measurement, unattributed_because="the attributing step did not end"))
    reply(_progress(request, TrialPhase.ATTRIBUTING, request.warmup_steps + request.timed_steps))
    attributed = _attributed(readings, state, measurement)
    reply(attributed)
    typical = None
    try:
        # the worst batch goes, and is not in the typical one's peak
        state = _on_typical_batch(_without_evaluation(state))
        typical = None if state.batch is None else _typical_step(request, readings, state)
    except BaseException as error:  # noqa: BLE001 - as above, and the measurement stands without it
        traceback.print_exception(what_was_raised(error))
    measurement = replace(attributed.measurement, typical=typical)
    reply(replace(attributed, measurement=measurement))
    if request.loader_limit_s is not None and state.workload.loader is not None:
        reply(TrialProgress(phase=TrialPhase.LOADING))
        measurement = replace(measurement, loader=_loader_speed(state.workload.loader, request, reply))
        reply(replace(attributed, measurement=measurement))


def _told_of(error: BaseException, readings: DeviceReadings) -> DeviceError | TrialVerdict:
    """Return the parent's message about an error that ended the trial; it is printed where it may be the user's."""
    if isinstance(error, DeviceError):
        return error
    if isinstance(error, _EveryStepSkippedError):
        evidence = "the gradient scaler skipped every step"
        return TrialVerdict(kind=OutcomeKind.NON_FINITE_LOSS, evidence=evidence)
    verdict = classify_failure(error, memory_is_full=_let_go(readings))
    traceback.print_exception(what_was_raised(error))
    return verdict


def _step_on_typical_batch(state: TrainingState) -> None:
    """Have the allocator hold what batches that vary leave, where they do."""
    typical = _on_typical_batch(state)
    if typical.batch is not None:
        run_optimizer_step(typical)


def _on_typical_batch(state: TrainingState) -> TrainingState:
    """Return a training whose batch is a typical one; it is None where all are alike."""
    with blamed_on_user():
        batch = state.workload.typical_batch(state.recipe.micro_batch_size) if state.workload.typical_batch else None
    return replace(state, batch=batch)


def _without_evaluation(state: TrainingState) -> TrainingState:
    return replace(state, workload=replace(state.workload, evaluate=None, evaluation_batch=None))


def _evaluated(readings: DeviceReadings, state: TrainingState, reply: Callable[[object], None]) -> TrainingState:
    """Evaluate as between two steps; where that fails, but not for memory, the training goes on without it."""
    if state.workload.evaluate is None:
        return state
    reply(TrialProgress(phase=TrialPhase.EVALUATING))
    try:
        run_evaluation(state)
        readings.synchronize()
    except (UserCodeError, WorkloadError) as error:
        verdict = classify_failure(error, memory_is_full=readings.memory_is_full())
        if verdict.kind is not OutcomeKind.USER_ERROR:
            raise
        traceback.print_exception(what_was_raised(error))
        reply(TrialNotes(notes=(_FAILED_EVALUATION.format(evidence=verdict.evidence),)))
        return _without_evaluation(state)
    return state


def _loader_speed(
    make_loader: Callable[[int], Iterable[object] | None], request: TrialRequest, reply: Callable[[object], None]
) -> LoaderSpeed | None:
    """Time the workload's data loader; None, and a note, where it fails: the measurement stands without it."""
    size = request.recipe.micro_batch_size
    try:
        loader = make_loader(size)
        return None if loader is None else time_loader(loader, size)
    except BaseException as error:  # noqa: BLE001 - as above
        traceback.print_exception(error)
        reply(TrialNotes(notes=(UNTIMED_LOADER_NOTE.format(reason=told_in_one_line(error)),)))
        return None


def _typical_step(request: TrialRequest, readings: DeviceReadings, state: TrainingState) -> TypicalStep:
    """Time a training on its typical batch, and read its peak."""
    _timed_step(readings, state)
    times = [_timed_step(readings, state).duration_s for _ in range(_TYPICAL_STEPS)]
    peak_bytes = readings.peak_of_step(state)
    samples = request.recipe.micro_batch_size * request.recipe.accumulation_steps
    return TypicalStep(peak_allocated_bytes=peak_bytes, samples_per_s=samples / statistics.median(times))


def _attributed(readings: DeviceReadings, state: TrainingState, measurement: Measurement) -> TrialReadings:
    """Add the breakdown to a measurement that is complete without it."""
    try:
        peaks = readings.attribute(state)
    except BaseException as error:  # noqa: BLE001 - as above, and the measurement stands whatever happens
        _let_go(readings)
        traceback.print_exception(what_was_raised(error))
        return TrialReadings(measurement=measurement, unattributed_because=told_in_one_line(error))
    breakdown, allocated_bytes = peaks.breakdown, peaks.allocated_bytes
    return TrialReadings(measurement=replace(measurement, breakdown=breakdown, peak_allocated_bytes=allocated_bytes))


def _let_go(readings: DeviceReadings) -> bool:
    """Lift the limits and say whether memory was full; a device that is out of order may answer neither."""
    try:
        readings.release_limits()
        return readings.memory_is_full()
    except Exception:  # noqa: BLE001 - what went wrong first is the news
        return False


def _readings_for(request: TrialRequest) -> DeviceReadings:
    if request.device.kind is DeviceKind.CPU:
        return CpuReadings(request.budget_bytes)
    return CudaReadings(request.device, request.budget_bytes)


def _run_trial(
    request: TrialRequest, readings: DeviceReadings, reply: Callable[[object], None]
) -> tuple[TrainingState, Measurement]:
    device = readings.start()
    reply(TrialProgress(phase=TrialPhase.IMPORTING))
    with blamed_on_user():
        workload = load_workload(request.source)
        let_go_of_payload(request.source)
        notes = notes_on_samples(workload.batch)
    if notes:
        reply(TrialNotes(notes=notes))
    reply(TrialProgress(phase=TrialPhase.BUILDING))
    readings.before_building()
    state = build_training(
        workload, request.recipe, device, request.seed, configured_learning_rate=request.configured_learning_rate
    )
    state, run = _run_steps(request, readings, state, reply)
    return state, _measurement(request, state, run, readings.read_peaks())


def _measurement(request: TrialRequest, state: TrainingState, run: _Run, peaks: DevicePeaks) -> Measurement:
    timed = tuple(step.duration_s for step in run.steps[request.warmup_steps :])
    samples = request.recipe.micro_batch_size * request.recipe.accumulation_steps
    growth = growth_note(run.held_bytes, samples=samples, budget_bytes=request.budget_bytes)
    return Measurement(
        peak_allocated_bytes=peaks.allocated_bytes,
        peak_reserved_bytes=peaks.reserved_bytes,
        peak_process_bytes=peaks.process_bytes,
        peak_device_bytes=peaks.device_bytes,
        breakdown=peaks.breakdown,
        step_times_s=timed,
        samples_per_s=samples / statistics.median(timed),
        losses=tuple(step.loss for step in run.steps[: request.warmup_steps + request.timed_steps]),
        alloc_retries=peaks.alloc_retries,
        notes=(*peaks.notes, *((growth,) if growth else ())),
        has_own_context=peaks.has_own_context,
        loss_scale=state.loss_scale,
        first_loss_scale=run.first_loss_scale,
        skipped_steps=run.skipped_steps,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    loss: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Warm-up and timed steps, and what the gradient scaler did: skipped warm-up steps are left out and counted.

    ``held_bytes`` are those of tensors after the last warm-up step and after each timed one.
    """

    steps: tuple[_Step, ...]
    held_bytes: tuple[int, ...]
    first_loss_scale: float | None
    skipped_steps: int


class _EveryStepSkippedError(Exception):
    """The gradient scaler found overflowing gradients in every step, however small the scale became."""


def _run_steps(
    request: TrialRequest, readings: DeviceReadings, state: TrainingState, reply: Callable[[object], None]
) -> tuple[TrainingState, _Run]:
    """Run warm-up and timed steps; a warm-up step that the gradient scaler skipped is run again and left out.

    Evaluation comes after every warm-up step, so that timed steps run on what it leaves the allocator with.

    Returns:
        The training, without its evaluation if that failed, and the steps.

    Raises:
        _EveryStepSkippedError: the scaler skipped every step.
    """
    steps: list[_Step] = []
    held_bytes: list[int] = []
    first_scale, skipped = state.loss_scale, 0
    while len(steps) < request.warmup_steps + request.timed_steps:
        is_warm_up = len(steps) < request.warmup_steps
        phase = TrialPhase.WARMING_UP if is_warm_up else TrialPhase.TIMING
        reply(_progress(request, phase, len(steps)))
        if is_warm_up:
            _step_on_typical_batch(state)
        scale = state.loss_scale
        step = _timed_step(readings, state)
        if is_warm_up:
            state = _evaluated(readings, state, reply)
        if not steps:
            readings.first_step_ended()
        was_skipped = (state.loss_scale or 0) < (scale or 0)
        skipped += was_skipped
        if was_skipped and is_warm_up and skipped <= MOST_SKIPPED_STEPS:
            continue
        if was_skipped and not steps:
            raise _EveryStepSkippedError
        steps.append(step)
        if len(steps) >= request.warmup_steps:
            held_bytes.append(readings.held_bytes())
    steps += _further_steps(request, readings, state, steps[request.warmup_steps :])
    return state, _Run(
        steps=tuple(steps), held_bytes=tuple(held_bytes), first_loss_scale=first_scale, skipped_steps=skipped
    )


def _further_steps(
    request: TrialRequest, readings: DeviceReadings, state: TrainingState, timed: Sequence[_Step]
) -> list[_Step]:
    """Time more of short steps, because a median of three depends on what else the machine does.

    Their losses do not count: how many there are is a matter of speed.
    """
    further: list[_Step] = []
    timed_s = sum(step.duration_s for step in timed)
    while timed_s < request.timed_s and len(timed) + len(further) < _MOST_TIMED_STEPS:
        further.append(_timed_step(readings, state))
        timed_s += further[-1].duration_s
    return further


def _timed_step(readings: DeviceReadings, state: TrainingState) -> _Step:
    """Run one step; the device is idle when its clock starts and when it stops."""
    readings.synchronize()
    started = time.perf_counter()
    loss = run_optimizer_step(state)
    readings.synchronize()
    return _Step(loss=loss, duration_s=time.perf_counter() - started)


def _progress(request: TrialRequest, phase: TrialPhase, done_steps: int) -> TrialProgress:
    return TrialProgress(
        phase=phase,
        step=done_steps + 1,
        step_count=request.warmup_steps + request.timed_steps + 1,
    )
