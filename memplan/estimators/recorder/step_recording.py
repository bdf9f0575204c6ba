"""Recording a workload's steps at one micro-batch size, on fake tensors or real ones."""

from __future__ import annotations

import functools
from collections import Counter
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from memplan.devices.cards import DeviceKind
from memplan.estimators.absent_card.compiled_extensions import absent_extension_kernels
from memplan.estimators.absent_card.triton_launches import absent_triton_launches
from memplan.estimators.fake_tensors.computed_numbers import NumberReads, reading_computed_numbers
from memplan.estimators.fake_tensors.fake_detection import hiding_fakes
from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.fake_tensors.known_values import LARGEST_GIVEN_ELEMENTS, remember_values
from memplan.estimators.fake_tensors.presumed_choices import PresumedChoices
from memplan.estimators.fake_tensors.result_cache import ResultCache
from memplan.estimators.fake_tensors.storage_addresses import addressed_storages
from memplan.estimators.lowering.target_device import inductor_card_of, kernels_of
from memplan.estimators.recorder.backward_thread import BackwardThread
from memplan.estimators.recorder.compiled_calls import CompiledCalls, compile_copies
from memplan.estimators.recorder.conditional_branches import tracing_conditional_branches
from memplan.estimators.recorder.engine_step import EngineStep
from memplan.estimators.recorder.fake_model import (
    attributes_left_on_host,
    fake_copy,
    is_scripted,
    remember_attributes,
    remember_buffers,
)
from memplan.estimators.recorder.model_copies import model_copy
from memplan.estimators.recorder.module_paths import ModulePaths
from memplan.estimators.recorder.operator_recorder import OperatorRecorder
from memplan.estimators.recorder.recipe_formats import channels_last_batch, convert_in_place, moved_batch
from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.storages import StorageLedger
from memplan.estimators.recorder.tensor_caches import clear_tensor_caches
from memplan.estimators.recorder.training_step import TracedStep
from memplan.estimators.recorder.user_calls import call_evaluation, call_user, copied_model
from memplan.estimators.recorder.wrapped_models import wrapper_notes
from memplan.recipe import Precision
from memplan.results import Component
from memplan.training.batches import map_tensors, tensors_in
from memplan.training.half_precision import HALF_TYPES, weights_dtype
from memplan.training.sharding import is_sharded, offloads_shards, shard_model
from memplan.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from memplan.devices.cards import DeviceSpec
    from memplan.estimators.absent_card.host_copies import HostCopies
    from memplan.estimators.fake_tensors.random_draws import RandomDraws
    from memplan.estimators.recorder.compiled_graphs import CompiledGraphs
    from memplan.recipe import Recipe
    from memplan.workload import Workload

_ONLY_EVALUATES = (
    "the model is in evaluation mode, as the workload makes it: nothing is dropped out, and batch normalisation keeps "
    "its statistics; where your training calls train(), call it in the model factory too; from_pretrained calls eval()"
)
_HALF_ALREADY = (
    "most of the model's weights are {kind}, as the workload makes them; {precision} says that autocast is off, not "
    "that the weights are 32 bits wide"
)
_OFFLOADED = (
    "FSDP offloads shards to the host: their gradients are counted as if they lay on the card, and without pin_memory "
    "so are they and their optimizer states"
)
_WHOLE = (
    "the shard function leaves every parameter whole, with a world_size of {replicas}; --world-size, or the recipe's "
    "world_size, says over how many replicas it shards"
)
STEPS = 2  # the first allocates the optimizer state, the second is the steady state


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """The recording of one run.

    Args:
        recording: events and blocks.
        optimizer_name: class name of the optimizer.
        unknown_calls: operators whose temporaries no rule counts, and their calls per step.
        notes: what was presumed, one phrase each.
        divides_batch: whether an operator runs in chunks whose size is not linear in the micro-batch.
    """

    recording: Recording
    optimizer_name: str
    unknown_calls: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    divides_batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostBatches:
    """The batches of a run on the host: that of every micro-step, and what makes any that are evaluated."""

    training: Any
    make_evaluated: Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecorder:
    """Records runs of one workload and recipe.

    Args:
        workload: what is trained.
        recipe: its settings.
        device: the target device.
        model: the real model; every run copies it.
        on_fakes: whether the copy and its batches are fake tensors; else the step is computed.
        fused_optimizer: whether to use the optimizer's fused implementation.
        host_copies: tensors that the step keeps on the host; None if the target device is the host.
        presumes: whether unknown values are presumed; else reading one ends the run.
        runs_graphs: whether functions that the user compiled run as Inductor's graphs of them; else uncompiled.
        reads: how numbers that modules read are presumed, where unknown values are.
        results: what operators on fake tensors returned in earlier runs.
        whole_code: compiled code that is taken for one graph, and the order of its results, as earlier runs found.
    """

    workload: Workload
    recipe: Recipe
    device: DeviceSpec
    model: nn.Module
    on_fakes: bool
    fused_optimizer: bool
    host_copies: HostCopies | None
    presumes: bool = False
    runs_graphs: bool = False
    reads: NumberReads = field(default_factory=NumberReads)
    results: ResultCache = field(default_factory=ResultCache)
    whole_code: dict[Any, tuple[int, ...] | None] = field(default_factory=dict)

    def record(self, micro_batch_size: int, batch: Any, draws: RandomDraws) -> RecordedRun:
        """Run ``STEPS`` optimizer steps on a copy of the model and record what they allocate.

        Args:
            micro_batch_size: samples of each forward pass.
            batch: these samples.
            draws: replaces scalar random numbers.

        Raises:
            WorkloadError: one of the workload's functions raises or breaks its contract.
        """
        if self.presumes or not self.on_fakes:  # a run on fake tensors failed before, whose tensors may be cached
            clear_tensor_caches()
        recording = Recording(micro_batch_size=micro_batch_size)
        ledger = StorageLedger(recording)
        fakes = TraceFakeMode(self.results, draws) if self.on_fakes else None
        model = self._model_of_run(fakes)
        batches = self._host_batches(micro_batch_size, batch, fakes)
        paths, choices = ModulePaths(model), PresumedChoices(self.reads)
        operators = OperatorRecorder(
            recording,
            ledger,
            paths,
            kernels=kernels_of(self.device),
            host_copies=self.host_copies,
            fakes=fakes,
            draws=draws,
            choices=choices if self.presumes else None,
        )
        fake_mode: AbstractContextManager[Any] = nullcontext() if fakes is None else fakes
        with fake_mode:
            self._convert(model)
        if self.workload.weights_arrive_sharded and self.host_copies is not None:
            for parameter in model.parameters():
                self.host_copies.leave(parameter)
        if self.workload.shard is not None:  # outside of the mode: values of meshes are read
            model = call_user("shard function", shard_model, model, self.workload.shard, self.recipe)
        compiled = CompiledCalls(functools.partial(self._compiled_graphs, recording, operators, ledger, paths))
        with ExitStack() as stack:
            traced = (draws.intercepted(), fake_mode, operators, paths.tracked(), compiled.watched())
            for each in (*traced, *self._replacements(operators, choices), ledger.following_resizes()):
                stack.enter_context(each)
            step = self._run(model, batches, recording, ledger, operators)
        recording.order_frees()
        calls = tuple((name, ceil_div(count, STEPS)) for name, count in operators.unknown_calls.items())
        notes = (
            *wrapper_notes(model),  # which the shard function may have compiled
            *compiled.notes,
            *draws.notes,
            *operators.presumed.notes,
            *step.notes,
            *choices.notes,
            *_notes_on(model, self.workload, self.recipe),
        )
        return RecordedRun(
            recording=recording,
            optimizer_name=type(step.optimizer).__name__,
            unknown_calls=calls,
            notes=notes,
            divides_batch=operators.divides_batch,
        )

    def _replacements(
        self, operators: OperatorRecorder, choices: PresumedChoices
    ) -> Iterator[AbstractContextManager[None]]:
        """Yield what replaces functions of PyTorch and of other libraries while the steps run, in this order."""
        if self.presumes:
            yield choices.converting_to_numpy()
            yield choices.choosing_all_of_computed_numbers()
        yield hiding_fakes()
        if self.presumes:
            yield reading_computed_numbers(operators.read_number)
        yield tracing_conditional_branches()
        yield operators.paused_for_whole_shapes()
        if self.device.kind is not DeviceKind.CPU:
            yield absent_triton_launches()
            if self.on_fakes:
                yield absent_extension_kernels(lambda name: operators.unknown_calls.update((name,)))
        if self.on_fakes and self.workload.spans_replicas:
            yield addressed_storages()

    def _compiled_graphs(
        self, recording: Recording, operators: OperatorRecorder, ledger: StorageLedger, paths: ModulePaths
    ) -> CompiledGraphs | None:
        card = inductor_card_of(self.device)
        if not self.runs_graphs or card is None:
            return None
        from memplan.estimators.recorder.compiled_code import CodeRunner  # noqa: PLC0415 - imports Inductor
        from memplan.estimators.recorder.compiled_graphs import CompiledGraphs  # noqa: PLC0415 - likewise

        runner = CodeRunner(recording, operators, ledger, paths, cache_bytes=card.cache_bytes)
        accumulates = self.recipe.accumulation_steps > 1
        return CompiledGraphs(runner, operators, paths, card=card, accumulates=accumulates, whole=self.whole_code)

    def _model_of_run(self, fakes: TraceFakeMode | None) -> nn.Module:
        """Copy the model, so that the next run starts from the same state."""
        if fakes is not None:
            made = self._fake_model(fakes)
            compile_copies(made, self.model)
            return made
        if is_scripted(self.model):  # parameters of its copies are not leaves (torch 2.13)
            self.model.zero_grad()
            return self.model
        return copied_model(self.model, model_copy)

    def _fake_model(self, fakes: TraceFakeMode) -> nn.Module:
        """Copy the model to fake tensors, and remember which values are known and which tensors lie on the host."""
        on_cpu = self.device.kind is DeviceKind.CPU
        made = copied_model(self.model, functools.partial(fake_copy, fakes=fakes, shares_storages=on_cpu))
        remember_buffers(made, self.model)
        remember_attributes(made, self.model)
        if self.host_copies is not None:
            for each, original in attributes_left_on_host(made, self.model):
                if not self.host_copies.is_made_on_card(original):
                    self.host_copies.presume(each)
        return made

    def _convert(self, model: nn.Module) -> None:
        """Convert the model's tensors as the recipe has it; DeepSpeed leaves buffers as they are."""
        convert_in_place(
            model,
            dtype=weights_dtype(self.workload, self.recipe),
            channels_last=self.workload.channels_last,
            weights_only=self.workload.deepspeed is not None,
        )

    def _host_batches(self, micro_batch_size: int, batch: Any, fakes: TraceFakeMode | None) -> _HostBatches:
        """Return the batches of a run; user code makes them outside of it.

        Raises:
            EvaluationError: the workload's function raised.
        """
        training = batch if fakes is None else _fake_batch(batch, fakes)
        if self.workload.evaluation_batch is None:
            return _HostBatches(training=training, make_evaluated=lambda: training)
        made = call_evaluation(self.workload.evaluation_batch, micro_batch_size)
        evaluated = made if fakes is None else _fake_batch(made, fakes)
        return _HostBatches(training=training, make_evaluated=lambda: map_tensors(torch.clone, evaluated))

    def _run(
        self,
        model: nn.Module,
        batches: _HostBatches,
        recording: Recording,
        ledger: StorageLedger,
        operators: OperatorRecorder,
    ) -> TracedStep:
        on_cuda = self.device.kind is DeviceKind.CUDA

        def hold(batch: Any) -> None:
            ledger.track_all(tensors_in(batch), Component.INPUTS, module="", operator="batch")

        def next_batch(make: Callable[[], Any]) -> Any:
            with operators.paused():
                batch = make()
            if not on_cuda:
                hold(batch)
            with operators.paused():
                moved = moved_batch(batch, dtype=weights_dtype(self.workload, self.recipe), copy_all=on_cuda)
            hold(moved)
            if not self.workload.channels_last:
                return moved
            with operators.paused():
                laid_out = channels_last_batch(moved)
            hold(laid_out)
            return laid_out

        if not on_cuda:
            hold(batches.training)
        make_step = TracedStep if self.workload.deepspeed is None else EngineStep
        step = make_step(
            self.workload,
            self.recipe,
            model=model,
            next_batch=lambda: next_batch(lambda: batches.training),
            recording=recording,
            ledger=ledger,
            on_cuda=on_cuda,
            fused_optimizer=self.fused_optimizer,
        )
        returns = [len(recording.cache_returns)]
        thread = BackwardThread()
        with thread.numbering() if on_cuda else nullcontext():
            for _ in range(STEPS):
                recording.step_starts.append(len(recording.event_blocks))
                step.run()
                thread.end_step()
                returns.append(len(recording.cache_returns))
            step.evaluate(lambda: next_batch(batches.make_evaluated))
        if len({after - before for before, after in pairwise(returns)}) > 1:
            recording.cache_returns.clear()  # steps between which it is not returned take more
        operators.resolve_pending_reuse()
        ledger.close()  # before resident tensors are freed
        return step


def _fake_batch(batch: Any, fakes: TraceFakeMode) -> Any:
    """Copy a batch to fake tensors whose values are known."""
    made = map_tensors(fakes.from_tensor, batch)
    remember_values(tensors_in(made), tensors_in(batch), largest_elements=LARGEST_GIVEN_ELEMENTS)
    return made


def _notes_on(model: nn.Module, workload: Workload, recipe: Recipe) -> tuple[str, ...]:
    """Say what is easily overlooked about the model as the workload made it."""
    sizes: Counter[torch.dtype] = Counter()
    for each in model.parameters():
        sizes[each.dtype] += each.numel()
    kind = max(sizes, key=lambda each: sizes[each], default=torch.float32)
    precision, replicas = recipe.precision, recipe.world_size
    is_half_already = precision in (Precision.FP32, Precision.TF32) and kind in HALF_TYPES
    found = {
        _ONLY_EVALUATES: not any(each.training for each in model.modules()),
        _OFFLOADED: offloads_shards(model),
        _WHOLE.format(replicas=replicas): workload.shard is not None and not is_sharded(model),
        _HALF_ALREADY.format(kind=str(kind).removeprefix("torch."), precision=precision): is_half_already,
    }
    return tuple(note for note, holds in found.items() if holds)
