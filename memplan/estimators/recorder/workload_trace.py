"""Tracing a workload: run its step on fake tensors at a few sizes, or on real tensors if fake ones fail."""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from memplan.configs.workloads import let_go_of_payload, load_workload
from memplan.devices.cards import DeviceKind
from memplan.devices.host_memory import host_memory
from memplan.errors import TraceError, WorkloadError
from memplan.estimators.fake_tensors.computed_numbers import NumberReads
from memplan.estimators.lowering.target_device import cuda_emulation_for, flash_attention_stand_in, lower_to
from memplan.estimators.recorder.compiled_calls import GRAPHS_NOTE, UNCOMPILED_NOTE, is_inductor_given_any
from memplan.estimators.recorder.fake_model import assign_instead_of_swapping
from memplan.estimators.recorder.forked_run import ForkedRun
from memplan.estimators.recorder.size_runs import SizeRunner, have_tensors_by_sample, samples_vary
from memplan.estimators.recorder.step_recording import RecordedRun, StepRecorder
from memplan.estimators.recorder.trace_assembly import assemble_trace
from memplan.estimators.recorder.user_calls import (
    EvaluationError,
    call_user,
    fake_tensor_reason,
    is_fake_tensor_failure,
    may_depend_on_size,
)
from memplan.estimators.recorder.workload_build import built_model, made_batch, made_batches
from memplan.estimators.recorder.worst_draw import WorstDrawRecorder
from memplan.estimators.tracing import SeenCardError
from memplan.training.default_device import forget_default_device
from memplan.training.host_context import resident_context_bytes
from memplan.training.sharding import join_absent_replicas
from memplan.training.skipped_initialisation import initialisation_skipped
from memplan.training.workload_contract import check_batches, name_of
from memplan.units import GIB, format_bytes
from memplan.worst_case import notes_on_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memplan.estimators.absent_card.cuda_emulation import CudaEmulation
    from memplan.estimators.absent_card.host_copies import HostCopies
    from memplan.estimators.fake_tensors.random_draws import RandomDraws
    from memplan.estimators.step_trace import StepTrace
    from memplan.estimators.tracing import TraceRequest
    from memplan.workload import Workload

    Trace = Callable[[TraceRequest], StepTrace]

_FREE_SHARE_OF_REAL_RUN = 0.5
_LARGEST_REAL_RUN_BYTES = 16 * GIB  # of all its blocks: a few seconds at some GiB a second
_UNCOUNTED_EVALUATION = "evaluation is not counted, since it cannot be traced ({reason})"
_LEAST_HALF = 8
_LEAST_USUAL_SIZE = 2  # a batch of one sample takes other paths
_PLAIN_SOFTMAX = "aten._safe_softmax"  # of ``_scaled_dot_product_attention_math``
_BLAS_OF_SCIPY = "OPENBLAS_NUM_THREADS"
_THREADS = torch.get_num_threads()
_REAL_RUN_COPIES = 5  # the model, and weights, gradients and two optimizer states of the copy that is run


class _NeedsComputingError(Exception):
    """The step cannot be traced, and may not be computed in this process."""


def trace_workload(request: TraceRequest, when_loaded: Callable[[Trace], None] = lambda _: None) -> StepTrace:
    """Trace the requested workload.

    Args:
        request: what is traced.
        when_loaded: called once the workload is loaded, before it is traced, with what traces it: a fork that is made
            here may trace another setting of it on the same device, if it need not be computed.

    Raises:
        WorkloadError: the workload cannot be loaded, raises or breaks its contract.
        SeenCardError: it may do so because of what user code does where it sees a card.
        TraceError: the model cannot be traced.
    """
    assign_instead_of_swapping()
    if request.device.kind is DeviceKind.CUDA:  # forks have none of OpenMP's threads, which copy a batch
        torch.set_num_threads(1)
        os.environ.setdefault(_BLAS_OF_SCIPY, "1")  # a process that has threads of its makes no forks
    lower_to(request.device)
    emulation = cuda_emulation_for(request.device, card_is_seen=request.card_is_seen)
    try:
        return _trace_with(emulation, request, when_loaded)
    except WorkloadError as error:
        if emulation is None or not (request.card_is_seen and emulation.presence.was_consulted):
            raise
        raise SeenCardError(error.problem, where=error.where, hint=error.hint, detail=error.detail) from error


def _trace_with(
    emulation: CudaEmulation | None, request: TraceRequest, when_loaded: Callable[[Trace], None]
) -> StepTrace:
    """Load the workload and trace it, with CUDA emulated for user code."""
    stand_in = flash_attention_stand_in(request.device)
    with emulation or nullcontext(), nullcontext() if stand_in is None else stand_in.offered():
        workload = load_workload(request.source)
        let_go_of_payload(request.source)
        forget_default_device()  # a card that code has chosen is not there; all is traced on the CPU
        host_context_bytes = resident_context_bytes() if request.device.kind is DeviceKind.CPU else None

        def trace(request: TraceRequest) -> StepTrace:
            with _automatic_collection_disabled():
                found = _trace_loaded(workload, request, None if emulation is None else emulation.host_copies)
            samples = None if workload.training_samples is None else _training_samples(workload.training_samples)
            of_card = () if emulation is None else emulation.presence.notes
            of_package = () if stand_in is None else stand_in.notes
            notes = (*notes_on_samples(workload.batch), *found.notes, *of_card, *of_package)
            return replace(found, host_context_bytes=host_context_bytes, training_samples=samples, notes=notes)

        when_loaded(lambda other: trace(replace(other, may_compute=False)))
        return trace(request)


def _training_samples(count_samples: Callable[[], int | None]) -> int | None:
    found = call_user("training samples function", count_samples)
    if found is None or (isinstance(found, int) and found > 0):
        return found
    raise WorkloadError(
        f"the workload's training samples function {name_of(count_samples)} returned {found!r}",
        hint="return the number of samples, or None",
    )


def _trace_loaded(workload: Workload, request: TraceRequest, host_copies: HostCopies | None) -> StepTrace:
    batches = made_batches(workload, request.batch_sizes[:2])
    check_batches(workload, batches)
    if workload.spans_replicas:
        join_absent_replicas(request.setting.recipe.world_size, "cpu")
    with initialisation_skipped():
        model = built_model(workload, request.setting.recipe, batches)
    recorder = StepRecorder(
        workload=workload,
        recipe=request.setting.recipe,
        device=request.device,
        model=model,
        on_fakes=True,
        fused_optimizer=request.setting.fused_optimizer,
        host_copies=host_copies,
    )
    try:
        return _trace_as_compiled(recorder, request, batches)
    except EvaluationError as error:
        steps_only = replace(recorder, workload=replace(workload, evaluate=None, evaluation_batch=None))
        trace = _trace_as_compiled(steps_only, request, batches)
        return replace(trace, notes=(*trace.notes, _UNCOUNTED_EVALUATION.format(reason=_reason(error))))


def _trace_as_compiled(recorder: StepRecorder, request: TraceRequest, batches: dict[int, Any]) -> StepTrace:
    """Trace the step with what it compiled as Inductor's graphs, or else as it runs uncompiled."""
    follows = request.device.kind is DeviceKind.CUDA
    was_compiled = is_inductor_given_any()
    compiled = _trace_graphs(recorder, request) if follows and was_compiled else None
    if compiled is not None:
        return compiled
    trace = _trace_at_working_sizes(recorder, request, batches)
    if follows and not was_compiled and UNCOMPILED_NOTE in trace.notes:  # the step itself compiles
        return _trace_graphs(recorder, request) or trace
    return trace


def _trace_graphs(recorder: StepRecorder, request: TraceRequest) -> StepTrace | None:
    """Trace with the functions that the step compiled as Inductor's graphs; None if it cannot be or runs none of them.

    What the graphs recompute, and the code that is written for them, depends on the size of the batch, so that they are
    made for the recipe's. The other size is its half, which is likely to have the same divisors, unless that is small.
    """
    first = max(request.setting.recipe.micro_batch_size, _LEAST_USUAL_SIZE)
    second = first // 2 if first % 2 == 0 and first // 2 >= _LEAST_HALF else 2 * first
    sized = replace(request, batch_sizes=(first, second))
    compiling = replace(recorder, runs_graphs=True, reads=NumberReads())
    try:
        batches = made_batches(recorder.workload, sized.batch_sizes[:2])
        trace = _trace_or_presume(compiling, sized, batches)
    except WorkloadError:
        return None
    if GRAPHS_NOTE not in trace.notes:
        return None
    if not compiling.reads.were_read or compiling.reads.were_compared:
        return trace
    return _trace_with_plain_numbers(compiling, sized, batches) or trace


def _trace_with_plain_numbers(
    recorder: StepRecorder, request: TraceRequest, batches: dict[int, Any]
) -> StepTrace | None:
    """Trace with numbers that compilers take, where what is read was seen to be of no consequence; None if that fails.

    Dynamo gives up on code that is given a number of another type.
    """
    try:
        return _trace(replace(recorder, presumes=True, reads=NumberReads(are_plain=True)), request, batches)
    except WorkloadError:
        return None


def _trace_or_presume(recorder: StepRecorder, request: TraceRequest, batches: dict[int, Any]) -> StepTrace:
    """Trace on fake tensors, and presume unknown values where these decide."""
    try:
        return _trace(recorder, request, batches)
    except WorkloadError as error:
        if not is_fake_tensor_failure(error):
            raise
    return _trace(replace(recorder, presumes=True), request, batches)


def _trace_at_working_sizes(recorder: StepRecorder, request: TraceRequest, batches: dict[int, Any]) -> StepTrace:
    """Trace at small sizes; if the size may be why that fails, at multiples of the recipe's micro-batch."""
    recipe_size = request.setting.recipe.micro_batch_size
    try:
        return _trace_or_compute(recorder, request, batches)
    except WorkloadError as error:
        if recipe_size in batches or not may_depend_on_size(error):
            raise
    other = replace(request, batch_sizes=(recipe_size, 2 * recipe_size))  # some models need a divisor
    return _trace_or_compute(recorder, other, made_batches(recorder.workload, other.batch_sizes))


def _trace_or_compute(recorder: StepRecorder, request: TraceRequest, batches: dict[int, Any]) -> StepTrace:
    """Trace on fake tensors; if these fail, presume unknown values or compute the step on the CPU.

    Computing is exact for the CPU and so comes first there. For a card it comes last, because attention and dropout
    allocate other blocks on a card.
    """
    try:
        return _trace(recorder, request, batches)
    except WorkloadError as error:
        if not is_fake_tensor_failure(error):
            raise
        failure = error
    presuming = replace(recorder, presumes=True)
    if isinstance(failure, EvaluationError):  # the steps are traced without it where values cannot be presumed
        return _trace(presuming, request, batches)
    if request.device.kind is DeviceKind.CPU:
        try:
            return _compute(recorder, request, batches, failure)
        except TraceError:  # it needs more memory than is free
            return _trace(presuming, request, batches)
    try:
        return _trace(presuming, request, batches)
    except WorkloadError as error:
        return _compute(recorder, request, batches, error if is_fake_tensor_failure(error) else failure)


def _trace(recorder: StepRecorder, request: TraceRequest, batches: dict[int, Any]) -> StepTrace:
    def record(size: int, draws: RandomDraws) -> RecordedRun:
        torch.set_num_threads(torch.get_num_threads())  # makes a fork's pool anew, before two of autograd's threads do
        batch = batches[size] if size in batches else made_batch(recorder.workload, size)
        return recorder.record(size, batch, draws)

    if recorder.runs_graphs:
        import memplan.estimators.recorder.compiled_graphs  # noqa: PLC0415, F401 - Inductor, once for both runs
    is_beside_others = not request.may_compute  # in a fork, of which there are several: the machine is full
    size_beside = None if is_beside_others else _size_run_beside(recorder, request.batch_sizes, batches)
    forked = None if size_beside is None else ForkedRun(size_beside, record)

    def found_or_recorded(size: int, draws: RandomDraws) -> RecordedRun:
        return (None if forked is None else forked.found(size, draws)) or record(size, draws)

    recorded = WorstDrawRecorder(found_or_recorded)
    runner = SizeRunner(
        record=recorded.record,
        sizes=request.batch_sizes,
        recipe_size=request.setting.recipe.micro_batch_size,
        may_run=lambda run, size: recorder.on_fakes or _is_affordable(run, size),  # fake tensors cost nothing
    )
    if samples_vary(batches) and len(request.batch_sizes) > 2:
        batches |= made_batches(recorder.workload, request.batch_sizes[2:])
    runs = runner.runs_of_varying_samples() if samples_vary(batches) else runner.runs_of_equal_samples()
    typical = _typical_run(recorder, runs.reference.micro_batch_size, recorded.draws())
    return assemble_trace(recorder, runs, typical, _sample_sizes(recorder.workload))


def _size_run_beside(recorder: StepRecorder, sizes: Sequence[int], batches: dict[int, Any]) -> int | None:
    """Return a size that is worth running in a fork from the start: one that is as good as sure to be run, and slow."""
    if recorder.runs_graphs:
        return sizes[1]
    return sizes[2] if recorder.on_fakes and len(sizes) > 2 and have_tensors_by_sample(batches) else None


def _is_affordable(run: RecordedRun, size: int) -> bool:
    """Whether a step of this size can be computed in a few seconds and half of the free memory."""
    recording = run.recording
    share = size / recording.micro_batch_size
    fits = share * recording.peak_bytes <= _FREE_SHARE_OF_REAL_RUN * host_memory().free_bytes
    return fits and share * sum(recording.block_bytes) <= _LARGEST_REAL_RUN_BYTES


def _typical_run(recorder: StepRecorder, size: int, draws: RandomDraws) -> RecordedRun | None:
    typical_batch = recorder.workload.typical_batch
    if typical_batch is None:
        return None
    batch = call_user("typical batch function", typical_batch, size)
    return None if batch is None else recorder.record(size, batch, draws)


def _sample_sizes(workload: Workload) -> Sequence[float]:
    if workload.sample_sizes is None:
        return ()
    return call_user("sample sizes function", workload.sample_sizes)  # type: ignore[no-any-return]  # by its contract


def _compute(recorder: StepRecorder, request: TraceRequest, batches: dict[int, Any], error: WorkloadError) -> StepTrace:
    """Run the step on real tensors, after it failed on fake ones.

    Raises:
        TraceError: it needs more memory than is free.
        _NeedsComputingError: the request is not to be computed.
    """
    if not request.may_compute:
        raise _NeedsComputingError
    needed_bytes = _REAL_RUN_COPIES * sum(each.numel() * each.element_size() for each in recorder.model.parameters())
    if needed_bytes > host_memory().free_bytes:
        raise TraceError(
            f"the model cannot be traced without computing it, which takes about {format_bytes(needed_bytes)} "
            f"of memory here: {error.problem}",
            where=error.where,
            hint="keep values of tensors out of Python's control flow there, or try a smaller model of the same kind",
            detail=error.detail,
        ) from error
    torch.set_num_threads(_THREADS)
    model = built_model(recorder.workload, request.setting.recipe, batches)
    trace = _trace(replace(recorder, model=model, on_fakes=False), request, batches)
    why = f"the step cannot run on fake tensors ({_reason(error)}); it was computed on the CPU at small micro-batches"
    is_on_card = request.device.kind is DeviceKind.CUDA
    if is_on_card and any(_PLAIN_SOFTMAX in each.operator_names for each in trace.timelines):
        why += ", with attention that keeps its probabilities"
    return replace(trace, notes=(*trace.notes, why))


def _reason(error: WorkloadError) -> str:
    place = f"{error.where}: " if error.where else ""
    return f"{place}{fake_tensor_reason(error)}"


@contextmanager
def _automatic_collection_disabled() -> Iterator[None]:
    """Disable automatic garbage collection, so that reference cycles are freed at the same point in every run.

    Objects from before are frozen, because scanning them takes longer than a small step.
    """
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
