"""Tracing one workload: build it, check its batches, run its step at a few sizes, generalise what was recorded."""

from __future__ import annotations

import gc
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from memplan.configs.workloads import load_workload
from memplan.devices.cards import DeviceKind
from memplan.devices.host_memory import host_memory
from memplan.errors import TraceError, WorkloadError
from memplan.estimators.lowering.target_device import cuda_emulation_for, lower_to, lowering_notes, uncounted_on
from memplan.estimators.recorder.batches import tensors_in
from memplan.estimators.recorder.checkpointing import enable_checkpointing
from memplan.estimators.recorder.fake_model import assign_instead_of_swapping, is_parameter_subclass
from memplan.estimators.recorder.host_context import resident_context_bytes
from memplan.estimators.recorder.repeated_steps import interleave_typical_steps, repeat_last_step
from memplan.estimators.recorder.size_fits import envelope_timeline, fit_timeline, proportional_timeline, same_structure
from memplan.estimators.recorder.size_runs import SizeRunner, SizeRuns, samples_vary
from memplan.estimators.recorder.skipped_initialisation import initialisation_skipped
from memplan.estimators.recorder.step_recording import RecordedRun, StepRecorder
from memplan.estimators.recorder.user_calls import (
    call_user,
    fake_tensor_reason,
    is_fake_tensor_failure,
    may_depend_on_size,
    name_of,
)
from memplan.estimators.recorder.worst_draw import WorstDrawRecorder
from memplan.estimators.recorder.wrapped_models import refuse_wrappers, wrapper_notes
from memplan.estimators.step_trace import StepTrace
from memplan.units import GIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.estimators.absent_card.cuda_emulation import CudaEmulation
    from memplan.estimators.absent_card.host_copies import HostCopies
    from memplan.estimators.fake_tensors.random_draws import RandomDraws
    from memplan.estimators.recorder.recording import Recording
    from memplan.estimators.step_trace import Timeline
    from memplan.estimators.tracing import TraceRequest
    from memplan.workload import Workload

FAKE_METHOD = "fake-tensor trace"
REAL_METHOD = "real CPU run at small micro-batches"
_ADDED_STEPS, _ADDED_STEPS_OF_TWO_SIZES = 1, 2  # each size once before the state of the optimizer, and once after
_UNEVEN = "The number of allocations depends on the micro-batch: figures are interpolated."
_VARYING = (
    "Samples differ in what they take: the figures are those of the batch that the workload makes of {size} samples, "
    "and other micro-batches follow in proportion. A batch function that makes the worst batch, as memplan.worst_batch "
    "does, makes them hold for every batch."
)
_FREE_SHARE_OF_REAL_RUN = 0.5
_LONGEST_REAL_RUN_BYTES = 16 * GIB  # what its blocks may take together; at some GiB a second it is over soon
_BY_TURNS = "Typical and worst batches come by turns: the allocator keeps room for blocks of both sizes."
_ONLY_WORST = "The typical batch makes other allocations than the worst: only the worst is replayed."
_REAL_RUN_COPIES = 5  # weights, gradients, two of optimizer state, and as much again for the copy that is run


def trace_workload(request: TraceRequest) -> StepTrace:
    """Trace the requested workload.

    Raises:
        WorkloadError: the workload cannot be loaded, raises or breaks its contract.
        TraceError: the model cannot be traced.
    """
    assign_instead_of_swapping()
    lower_to(request.device)
    words = cuda_emulation_for(request.device, gpu_is_seen=True)
    try:
        return _traced_amid(words, request)
    except WorkloadError:
        if words is None or not words.presence.was_asked:
            raise
    # what the user's code does where it is told of a GPU may be what cannot run here
    return _traced_amid(cuda_emulation_for(request.device, gpu_is_seen=False), request)


def _traced_amid(words: CudaEmulation | None, request: TraceRequest) -> StepTrace:
    """Load the workload and trace it, with the user's words for CUDA understood as they are meant."""
    with words or nullcontext():
        workload = load_workload(request.source)
        host_context_bytes = resident_context_bytes() if request.device.kind is DeviceKind.CPU else None
        with garbage_collected_on_demand():
            trace = _traced_workload(workload, request, None if words is None else words.host_copies)
    notes = trace.notes if words is None else (*trace.notes, *words.presence.notes)
    return replace(trace, host_context_bytes=host_context_bytes, notes=notes)


def _traced_workload(workload: Workload, request: TraceRequest, host_copies: HostCopies | None) -> StepTrace:
    batches = _made_batches(workload, request.batch_sizes[:2])
    _check_batches(workload, batches)
    with initialisation_skipped():
        model = _built(workload, request)
        _materialise(model, workload, batches)
    recorder = StepRecorder(
        workload=workload,
        recipe=request.recipe,
        device=request.device,
        model=model,
        on_fakes=True,
        fused_optimizer=request.fused_optimizer,
        host_copies=host_copies,
    )
    return _traced_somehow(recorder, request, batches)


def _traced_somehow(recorder: StepRecorder, request: TraceRequest, batches: dict[int, Any]) -> StepTrace:
    """Trace at small sizes; where a size may be what fails, at multiples of the recipe's own micro-batch."""
    own = request.recipe.micro_batch_size
    try:
        return _traced_or_computed(recorder, request, batches)
    except WorkloadError as error:
        if own in batches or not may_depend_on_size(error):
            raise
    other = replace(request, batch_sizes=(own, 2 * own))  # some models take only sizes that divide by something
    return _traced_or_computed(recorder, other, _made_batches(recorder.workload, other.batch_sizes))


def _traced_or_computed(recorder: StepRecorder, request: TraceRequest, batches: dict[int, Any]) -> StepTrace:
    """Trace on fake tensors; where these are what fails, presume what they do not tell or compute the step.

    Computing tells exactly what a step takes on the CPU, and attention and dropout on a card take other memory: for a
    card it comes last.
    """
    try:
        return _traced(recorder, request, batches)
    except WorkloadError as error:
        if not is_fake_tensor_failure(error):
            raise
        failure = error
    presuming = replace(recorder, presumes=True)
    if request.device.kind is DeviceKind.CPU:
        try:
            return _traced_for_real(recorder, request, batches, failure)
        except TraceError:  # it would take more memory than there is
            return _traced(presuming, request, batches)
    try:
        return _traced(presuming, request, batches)
    except WorkloadError as error:
        return _traced_for_real(recorder, request, batches, error if is_fake_tensor_failure(error) else failure)


def _traced(recorder: StepRecorder, request: TraceRequest, batches: dict[int, Any]) -> StepTrace:
    def record(size: int, draws: RandomDraws) -> RecordedRun:
        if size not in batches:
            return recorder.record(size, call_user("batch function", recorder.workload.batch, size), draws)
        return recorder.record(size, batches[size], draws)

    drawn = WorstDrawRecorder(record)
    runner = SizeRunner(
        record=drawn.record,
        sizes=request.batch_sizes,
        own=request.recipe.micro_batch_size,
        may_run=lambda run, size: recorder.on_fakes or _is_soon_computed(run, size),  # fakes take no memory
    )
    if samples_vary(batches) and len(request.batch_sizes) > 2:
        batches |= _made_batches(recorder.workload, request.batch_sizes[2:])
    runs = runner.runs_of_varying_samples() if samples_vary(batches) else runner.runs_of_equal_samples()
    return _as_trace(recorder, runs, _typical_run(recorder, runs.reference.micro_batch_size, drawn.draws()))


def _is_soon_computed(run: RecordedRun, size: int) -> bool:
    """Whether a step of so many samples is computed soon, within half of the free memory."""
    recording = run.recording
    share = size / recording.micro_batch_size
    fits = share * recording.peak_bytes <= _FREE_SHARE_OF_REAL_RUN * host_memory().free_bytes
    return fits and share * sum(recording.block_bytes) <= _LONGEST_REAL_RUN_BYTES


def _typical_run(recorder: StepRecorder, size: int, draws: RandomDraws) -> RecordedRun | None:
    typical_batch = recorder.workload.typical_batch
    if typical_batch is None:
        return None
    return recorder.record(size, call_user("typical batch function", typical_batch, size), draws)


def _traced_for_real(
    recorder: StepRecorder, request: TraceRequest, batches: dict[int, Any], error: WorkloadError
) -> StepTrace:
    """Run the step on real tensors, where it failed on fake ones."""
    needed_bytes = _REAL_RUN_COPIES * sum(each.numel() * each.element_size() for each in recorder.model.parameters())
    if needed_bytes > host_memory().free_bytes:
        raise TraceError(
            f"the model cannot be traced without computing it, which takes about {format_bytes(needed_bytes)} "
            f"of memory here: {error.problem}",
            where=error.where,
            hint="keep values of tensors out of Python's control flow there, or try a smaller model of the same kind",
            detail=error.detail,
        ) from error
    real = replace(recorder, model=_built(recorder.workload, request), on_fakes=False)
    trace = _traced(real, request, batches)
    place = f"{error.where}: " if error.where else ""
    why = (
        f"The step cannot run on fake tensors ({place}{fake_tensor_reason(error)}); "
        "it was computed on the CPU at small micro-batches, with attention that keeps its probabilities."
    )
    return replace(trace, method=REAL_METHOD, notes=(*trace.notes, why))


def _as_trace(recorder: StepRecorder, found: SizeRuns, typical: RecordedRun | None) -> StepTrace:
    runs, recordings = found.runs, found.recordings
    for recording in (*recordings, *(() if typical is None else (typical.recording,))):
        for _ in range(_ADDED_STEPS if typical is None else _ADDED_STEPS_OF_TWO_SIZES):
            repeat_last_step(recording)
    timelines, notes = _timelines(found)
    envelope = envelope_timeline(recordings) if found.samples_vary and len(timelines) == 1 else None
    if typical is not None:
        timelines, said = _with_typical(timelines, found.reference, typical.recording)
        notes += said
    model, device = recorder.model, recorder.device
    return StepTrace(
        workload_name=recorder.workload.name or type(model).__name__,
        recipe=recorder.recipe,
        device_kind=device.kind,
        compute_capability=device.compute_capability,
        timelines=timelines,
        envelope=envelope,
        traced_batch_sizes=tuple(each.micro_batch_size for each in recordings),
        parameter_count=sum(each.numel() for each in model.parameters()),
        uses_batch_norm=any(isinstance(each, _BatchNorm) for each in model.modules()),
        optimizer_name=runs[0].optimizer_name,
        method=FAKE_METHOD,
        uncounted=uncounted_on(
            device,
            classes={type(each).__name__ for each in model.modules()},
            calls=runs[0].unknown_calls,
            world_size=recorder.recipe.world_size,
        ),
        notes=tuple(dict.fromkeys((*lowering_notes(device), *wrapper_notes(model), *runs[0].notes, *notes))),
    )


def _timelines(found: SizeRuns) -> tuple[tuple[Timeline, ...], tuple[str, ...]]:
    """Generalise the runs; return the timelines and what to say of them."""
    recordings = found.recordings
    if not same_structure(recordings):
        return tuple(fit_timeline([each]) for each in recordings), (_UNEVEN,)
    if found.samples_vary:
        return (proportional_timeline(recordings),), (_VARYING.format(size=found.reference.micro_batch_size),)
    return (fit_timeline(recordings),), ()


def _with_typical(
    timelines: tuple[Timeline, ...], worst: Recording, typical: Recording
) -> tuple[tuple[Timeline, ...], tuple[str, ...]]:
    """Let a typical batch take turns with the worst, where both make the same blocks."""
    if len(timelines) > 1 or not same_structure([worst, typical]):
        return timelines, (_ONLY_WORST,)
    return (interleave_typical_steps(timelines[0], worst, typical),), (_BY_TURNS,)


def _built(workload: Workload, request: TraceRequest) -> nn.Module:
    model = call_user("model factory", workload.model)
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"the workload's model factory {name_of(workload.model)} returned a {type(model).__name__}",
            hint="return a torch.nn.Module",
        )
    refuse_wrappers(model)
    if any(is_parameter_subclass(each) for each in model.parameters()):
        model.to("cpu")  # as a move to a card would: bitsandbytes quantizes then
    if request.recipe.activation_checkpointing:
        enable_checkpointing(model)
    return model


def _materialise(model: nn.Module, workload: Workload, batches: dict[int, Any]) -> None:
    """Let lazy modules, whose shapes are not known before they see a batch, see the smallest."""
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        with torch.no_grad():
            call_user("loss", workload.loss, model, batches[min(batches)])


def _made_batches(workload: Workload, sizes: tuple[int, ...]) -> dict[int, Any]:
    return {size: call_user("batch function", workload.batch, size) for size in sizes}


def _check_batches(workload: Workload, batches: dict[int, Any]) -> None:
    shapes = [[tuple(each.shape) for each in tensors_in(batch)] for batch in batches.values()]
    if not shapes[0]:
        raise WorkloadError(
            f"the workload's batch function {name_of(workload.batch)} returned no tensor",
            hint="return tensors, in dicts, lists, tuples or dataclasses where there are several",
        )
    if shapes[0] == shapes[1]:
        tried = " and ".join(str(size) for size in batches)
        raise WorkloadError(
            f"the workload's batch function {name_of(workload.batch)} ignores its argument: "
            f"for {tried} samples it returned tensors of the same shapes {shapes[0]}",
            hint="return as many samples as it is asked for",
        )


@contextmanager
def garbage_collected_on_demand() -> Iterator[None]:
    """Collect garbage only where it is asked for, so that what lives in cycles dies at the same point every time.

    What is there before is not looked through, which takes longer than a run of a small step.
    """
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
