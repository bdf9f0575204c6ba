"""One live trial, in the process made for it: build, warm up, time, attribute, and answer.

Imports torch; child processes only.
"""

from __future__ import annotations

import statistics
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.cards import DeviceKind
from memplan.configs.workloads import load_workload
from memplan.probe.cpu_readings import CpuReadings
from memplan.probe.cuda_readings import CudaReadings
from memplan.probe.failures import classify_failure, what_was_raised
from memplan.probe.training_loop import build_training, run_optimizer_step
from memplan.probe.trials import TrialPhase, TrialProgress, TrialReadings, TrialRequest
from memplan.probe.users_part import users_part
from memplan.results import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.probe.readings import DeviceReadings
    from memplan.probe.training_loop import TrainingState


def run_request(request: TrialRequest, reply: Callable[[object], None]) -> None:
    """Run the trial and reply with :class:`TrialProgress` values, then one ``TrialReadings`` or ``TrialVerdict``."""
    readings = _readings_for(request)
    try:
        last_word: object = TrialReadings(measurement=_run_trial(request, readings, reply))
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, and everything is an outcome
        last_word = classify_failure(error, memory_is_full=_let_go(readings))
        traceback.print_exception(what_was_raised(error))
    reply(last_word)


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


def _run_trial(request: TrialRequest, readings: DeviceReadings, reply: Callable[[object], None]) -> Measurement:
    device = readings.start()
    reply(TrialProgress(phase=TrialPhase.BUILDING))
    with users_part():
        workload = load_workload(request.source)
    readings.before_building()
    state = build_training(
        workload, request.recipe, device, request.seed, configured_learning_rate=request.configured_learning_rate
    )
    steps = _run_steps(request, readings, state, reply)
    readings.read_peaks()
    reply(_progress(request, TrialPhase.ATTRIBUTING, steps))
    peaks = readings.attribute(state)
    timed = tuple(step.duration_s for step in steps[request.warmup_steps :])
    samples = request.recipe.micro_batch_size * request.recipe.accumulation_steps
    return Measurement(
        peak_allocated_bytes=peaks.allocated_bytes,
        peak_reserved_bytes=peaks.reserved_bytes,
        peak_process_bytes=peaks.process_bytes,
        peak_device_bytes=peaks.device_bytes,
        breakdown=peaks.breakdown,
        step_times_s=timed,
        samples_per_s=samples / statistics.median(timed),
        losses=tuple(step.loss for step in steps),
        alloc_retries=peaks.alloc_retries,
        loss_scale=None if state.scaler is None else float(state.scaler.get_scale()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    loss: float
    duration_s: float


def _run_steps(
    request: TrialRequest, readings: DeviceReadings, state: TrainingState, reply: Callable[[object], None]
) -> list[_Step]:
    """Run warm-up and timed steps; the device is idle when a step's clock starts and when it stops."""
    steps: list[_Step] = []
    for number in range(request.warmup_steps + request.timed_steps):
        phase = TrialPhase.WARMING_UP if number < request.warmup_steps else TrialPhase.TIMING
        reply(_progress(request, phase, steps))
        readings.synchronize()
        started = time.perf_counter()
        loss = run_optimizer_step(state)
        readings.synchronize()
        steps.append(_Step(loss=loss, duration_s=time.perf_counter() - started))
    return steps


def _progress(request: TrialRequest, phase: TrialPhase, steps: list[_Step]) -> TrialProgress:
    return TrialProgress(
        phase=phase,
        step=len(steps) + 1,
        step_count=request.warmup_steps + request.timed_steps + 1,
        last_step_s=steps[-1].duration_s if steps else None,
    )
