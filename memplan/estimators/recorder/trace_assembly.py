"""The ``StepTrace`` of a workload, from the recorded runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from memplan.devices.cards import DeviceKind
from memplan.estimators.lowering.determinism import notes_on_refused
from memplan.estimators.lowering.target_device import lowering_notes, uncounted_on
from memplan.estimators.recorder.like_runs import in_structure_of
from memplan.estimators.recorder.looping_runs import looping_timeline
from memplan.estimators.recorder.repeated_steps import drawn_batches, interleave_typical_steps, repeat_last_step
from memplan.estimators.recorder.size_fits import envelope_timeline, fit_timeline, proportional_timeline, same_structure
from memplan.estimators.recorder.wrapped_models import wrapper_notes
from memplan.estimators.step_trace import StepTrace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.estimators.recorder.size_runs import SizeRuns
    from memplan.estimators.recorder.step_recording import RecordedRun, StepRecorder
    from memplan.estimators.step_trace import Timeline

FAKE_METHOD = "fake-tensor trace"
REAL_METHOD = "real CPU run at small micro-batches"
_ADDED_STEPS, _ADDED_STEPS_OF_TWO_SIZES = 1, 2  # each size once before the optimizer state exists, and once after
_UNEVEN = "the number of allocations depends on the micro-batch: figures are interpolated"
_WRITTEN_ANEW = "compiled code differs between micro-batches: that for {size} stands for others, with larger buffers"
_VARYING = (
    "samples differ, or what they take follows no curve over the micro-batch: the figures are those of a batch that "
    "the workload makes, and other micro-batches follow in proportion; where samples differ, a batch function that "
    "makes the worst batch, as memplan.worst_batch does, makes them hold for every batch"
)
_ALTERNATING = "typical and worst batches alternate: the allocator keeps memory for blocks of both sizes"
_ONLY_WORST = "the typical batch makes other allocations than the worst: only the worst is replayed"


def assemble_trace(
    recorder: StepRecorder, found: SizeRuns, typical: RecordedRun | None, sample_sizes: Sequence[float]
) -> StepTrace:
    """Return the trace of the runs.

    Args:
        recorder: recorded the runs.
        found: runs at several sizes.
        typical: a run on a typical batch; None if the workload names none.
        sample_sizes: how large samples are, in any unit; none where the workload does not tell.
    """
    runs, recordings = found.runs, found.recordings
    for recording in (*recordings, *(() if typical is None else (typical.recording,))):
        for _ in range(_ADDED_STEPS if typical is None else _ADDED_STEPS_OF_TWO_SIZES):
            repeat_last_step(recording)
    timelines, notes = _timelines(found, is_written_for_size=recorder.runs_graphs)
    envelope = envelope_timeline(recordings) if found.samples_vary and len(timelines) == 1 else None
    drawn = None
    is_one = len(timelines) == 1 and timelines[0].loops is None
    if typical is not None and is_one and same_structure([found.reference, typical.recording]):
        drawn = drawn_batches(timelines[0], found.reference, typical.recording, sample_sizes)
        timelines = (interleave_typical_steps(timelines[0], found.reference, typical.recording),)
        notes += (_ALTERNATING,)
    elif typical is not None:
        notes += (_ONLY_WORST,)
    if torch.backends.cudnn.benchmark:
        timelines = tuple(_searching(each) for each in timelines)
    model, device = recorder.model, recorder.device
    if device.kind is not DeviceKind.CPU:
        notes += notes_on_refused({name for each in recordings for name in each.operator_names})
    return StepTrace(
        workload_name=recorder.workload.name or type(model).__name__,
        recipe=recorder.recipe,
        device_kind=device.kind,
        compute_capability=device.compute_capability,
        sm_count=device.sm_count,
        timelines=timelines,
        envelope=envelope,
        drawn=None if timelines[0].cache_returns.size else drawn,  # nothing piles up where the cache is emptied
        traced_batch_sizes=tuple(each.micro_batch_size for each in recordings),
        uses_batch_norm=any(isinstance(each, _BatchNorm) for each in model.modules()),
        is_in_benchmark_mode=torch.backends.cudnn.benchmark,
        optimizer_name=runs[0].optimizer_name,
        method=FAKE_METHOD if recorder.on_fakes else REAL_METHOD,
        uncounted=uncounted_on(
            device,
            classes={type(each).__name__ for each in model.modules()},
            calls=runs[0].unknown_calls,
            world_size=recorder.recipe.world_size,
        ),
        notes=tuple(dict.fromkeys((*lowering_notes(device), *wrapper_notes(model), *runs[0].notes, *notes))),
    )


def _timelines(found: SizeRuns, *, is_written_for_size: bool) -> tuple[tuple[Timeline, ...], tuple[str, ...]]:
    """Fit timelines to the runs, of code that may have been written anew for each size; return them with notes."""
    recordings = found.recordings
    if not same_structure(recordings):
        looping = looping_timeline(recordings)
        if looping is not None and looping.loops is not None:
            fewer = [each for each in recordings if each.micro_batch_size < looping.loops.least_samples]
            return (*(fit_timeline([each]) for each in fewer), looping), ()
        alike = in_structure_of(recordings[0], recordings[-1]) if is_written_for_size else None
        if alike is not None:
            return (fit_timeline([recordings[0], alike]),), (_WRITTEN_ANEW.format(size=recordings[0].micro_batch_size),)
        return tuple(fit_timeline([each]) for each in recordings), (_UNEVEN,)
    if found.samples_vary:
        return (proportional_timeline(recordings),), (_VARYING,)
    return (fit_timeline(recordings),), ()


def _searching(timeline: Timeline) -> Timeline:
    """Return cached memory after each search for an algorithm (``get_plans_from_find`` in ``Conv_v8.cpp``)."""
    searches = timeline.allocations[timeline.workspaces.first_calls().blocks]
    return replace(timeline, cache_returns=np.union1d(timeline.cache_returns, searches))
