"""Tracing one workload: build it, check its batches, run its step at a few sizes, generalise what was recorded."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.batchnorm import _BatchNorm

from memplan.cards import DeviceKind
from memplan.configs.workloads import load_workload
from memplan.errors import WorkloadError
from memplan.estimators.batches import tensors_in
from memplan.estimators.checkpointing import switch_checkpointing_on
from memplan.estimators.fake_model import fake_batch, fake_copy, moved_batch
from memplan.estimators.linear import generalised, needs_third_run, same_structure
from memplan.estimators.lowering import lower_to, lowered_capability, lowering_notes
from memplan.estimators.module_paths import ModulePaths
from memplan.estimators.operator_recorder import OperatorRecorder
from memplan.estimators.recording import Recording
from memplan.estimators.step_trace import Category, StepTrace
from memplan.estimators.storages import StorageLedger
from memplan.estimators.training_step import TracedStep
from memplan.estimators.untouched_build import untouched_fills
from memplan.estimators.user_calls import call_user, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.estimators.tracing import TraceRequest
    from memplan.recipe import Recipe
    from memplan.workload import Workload

STEPS = 2  # the first makes the optimizer state, the second is the steady one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    recording: Recording
    optimizer_name: str


def trace_workload(request: TraceRequest) -> StepTrace:
    """Trace the requested workload.

    Raises:
        WorkloadError: the workload cannot be loaded, raises or breaks its contract.
        TraceError: the model cannot be traced.
    """
    lower_to(request.device)
    workload = load_workload(request.source)
    batches = {size: call_user("batch function", workload.batch, size) for size in request.batch_sizes[:2]}
    _check_batches(workload, batches)
    model = _built(workload, request.recipe)
    runs = [_record(workload, request, model, size, batch) for size, batch in batches.items()]
    return _as_trace(workload, request, model, runs)


def _as_trace(workload: Workload, request: TraceRequest, model: nn.Module, runs: list[_Run]) -> StepTrace:
    recordings = [run.recording for run in runs]
    uniform = same_structure(recordings)
    if uniform and needs_third_run(recordings) and len(request.batch_sizes) > 2:
        size = request.batch_sizes[2]
        batch = call_user("batch function", workload.batch, size)
        recordings.append(_record(workload, request, model, size, batch).recording)
        uniform = same_structure(recordings)
    return StepTrace(
        workload_name=workload.name or type(model).__name__,
        recipe=request.recipe,
        device_kind=request.device.kind,
        compute_capability=request.device.compute_capability,
        timelines=(generalised(recordings),) if uniform else tuple(generalised([each]) for each in recordings),
        traced_batch_sizes=tuple(each.micro_batch_size for each in recordings),
        parameter_count=sum(each.numel() for each in model.parameters()),
        uses_batch_norm=any(isinstance(each, _BatchNorm) for each in model.modules()),
        optimizer_name=runs[0].optimizer_name,
        method="fake-tensor trace",
        notes=lowering_notes(request.device),
    )


def _built(workload: Workload, recipe: Recipe) -> nn.Module:
    with untouched_fills():
        model = call_user("model factory", workload.model)
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"the workload's model factory {name_of(workload.model)} returned a {type(model).__name__}",
            hint="return a torch.nn.Module",
        )
    if recipe.activation_checkpointing:
        switch_checkpointing_on(model)
    return model


def _check_batches(workload: Workload, batches: dict[int, Any]) -> None:
    shapes = [[tuple(each.shape) for each in tensors_in(batch)] for batch in batches.values()]
    if not shapes[0]:
        raise WorkloadError(f"the workload's batch function {name_of(workload.batch)} returned no tensor")
    if shapes[0] == shapes[1]:
        tried = " and ".join(str(size) for size in batches)
        raise WorkloadError(
            f"the workload's batch function {name_of(workload.batch)} ignores its argument: "
            f"for {tried} samples it returned tensors of the same shapes {shapes[0]}",
            hint="return as many samples as it is asked for",
        )


def _record(workload: Workload, request: TraceRequest, model: nn.Module, size: int, batch: Any) -> _Run:
    precision, channels_last = request.recipe.precision, workload.channels_last
    on_cuda = request.device.kind is DeviceKind.CUDA
    recording = Recording(micro_batch_size=size)
    ledger = StorageLedger(recording)
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    copied = fake_copy(model, fakes, precision=precision, channels_last=channels_last)
    on_host = fake_batch(batch, fakes)
    paths = ModulePaths(copied)
    recorder = OperatorRecorder(recording, ledger, paths, capability=lowered_capability(request.device))

    def next_batch() -> Any:
        with recorder.muted():
            moved = moved_batch(on_host, precision=precision, channels_last=channels_last, copy_all=on_cuda)
        ledger.see_all(tensors_in(moved), Category.INPUTS, module="", operator="batch")
        return moved

    with collected_garbage(), fakes, recorder, paths.watched():
        if not on_cuda:
            ledger.see_all(tensors_in(on_host), Category.INPUTS, module="", operator="batch")
        step = TracedStep(
            workload,
            request.recipe,
            model=copied,
            next_batch=next_batch,
            recording=recording,
            ledger=ledger,
            on_cuda=on_cuda,
        )
        for _ in range(STEPS):
            step.run()
        recorder.settle()
        ledger.close()
    return _Run(recording=recording, optimizer_name=type(step.optimizer).__name__)


@contextmanager
def collected_garbage() -> Iterator[None]:
    """Collect garbage only where it is asked for, so that what lives in cycles dies at the same point every time."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
