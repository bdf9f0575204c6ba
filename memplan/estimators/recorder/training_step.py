"""The traced training step, with the phases of a live trial in the same order."""

from __future__ import annotations

import functools
import gc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from memplan.errors import WorkloadError
from memplan.estimators.absent_card.card_answers import runs_multi_tensor
from memplan.estimators.lowering.cudnn_recurrence import flatten_weights
from memplan.estimators.recorder.fake_model import auxiliary_tensors, unregistered_tensors
from memplan.estimators.recorder.step_growth import growth_notes, later_state_note
from memplan.estimators.recorder.user_calls import call_evaluation, call_user
from memplan.estimators.recorder.wrapped_models import name_without_wrappers
from memplan.recipe import Precision
from memplan.results import Component, Phase
from memplan.training.batches import tensors_in
from memplan.training.deepspeed_engine import parts_of
from memplan.training.evaluation import evaluate_batches
from memplan.training.gradient_buckets import make_buckets
from memplan.training.moving_average import make_moving_average, update_moving_average
from memplan.training.optimizer_states import optimizer_states, optimizers_of, stepped_copies
from memplan.training.sharding import autocast_of, begin_pass, clip_gradients
from memplan.training.workload_contract import check_step, checked_loss, checked_optimizer, name_of
from memplan.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.optim import Optimizer

    from memplan.estimators.recorder.recording import Recording
    from memplan.estimators.recorder.storages import StorageLedger
    from memplan.recipe import Recipe
    from memplan.workload import Workload

_PAGED = (
    "the optimizer's paged state is counted as on the card; CUDA moves it to the host where the card is full, and "
    "PyTorch's own figures leave it out"
)
_UNNAMED = (Component.TEMPORARIES, Component.ACTIVATIONS)
_FULL_HISTORY = "; a full history of {count} updates holds {size}"


class TracedStep:
    """Runs optimizer steps of a workload and sets the components of the recorded blocks.

    Args:
        workload: what is trained.
        recipe: its settings.
        model: the model to run; its tensors become blocks at once.
        next_batch: returns the next micro-batch on the device.
        recording: events and blocks.
        ledger: blocks of the storages.
        on_cuda: whether clipping uses the multi-tensor (foreach) path, as for CUDA parameters.
        fused_optimizer: whether to use the optimizer's fused implementation.
    """

    def __init__(
        self,
        workload: Workload,
        recipe: Recipe,
        *,
        model: nn.Module,
        next_batch: Callable[[], Any],
        recording: Recording,
        ledger: StorageLedger,
        on_cuda: bool,
        fused_optimizer: bool,
    ) -> None:
        self._workload = workload
        self._recipe = recipe
        self._model = model
        self._next_batch = next_batch
        self._recording = recording
        self._ledger = ledger
        self._on_cuda = on_cuda
        self._scale: torch.Tensor | None = None
        self._average: dict[str, torch.Tensor] = {}
        self._owners: dict[int, str] = {}  # module of each parameter, by identity
        self._batch: Any = None
        self._left: list[set[int]] = []  # blocks, by each step
        self._with_state: list[set[int]] = []  # parameters, by identity and by each step
        self._place_model()
        self._buckets = make_buckets(model, workload, recipe)
        self._mark(self._buckets, Component.GRADIENTS)
        made = call_user("optimizer", workload.optimizer, model.parameters())
        self.optimizer = checked_optimizer(made, workload.optimizer)
        if fused_optimizer:
            _use_fused(self.optimizer)
        self._prepare_optimizer()

    def run(self) -> None:
        """Run one optimizer step: zero the gradients, accumulate, clip, step."""
        self._recording.phase = Phase.FORWARD
        if not (self._workload.zero_grad_before_backward or self._workload.zero_grad_after_step):
            self._zero_gradients()
        losses = [self._micro_step(index) for index in range(self._recipe.accumulation_steps)]
        self._recording.phase = Phase.OPTIMIZER_STEP
        self._step_the_optimizer()
        self._name_replaced_parameters()
        self._mark_state()
        if self._workload.zero_grad_after_step:
            self._zero_gradients()
        if self._workload.ema:
            update_moving_average(self._average, self._model)
        losses.clear()
        self._left.append(self._ledger.live_blocks())
        self._with_state.append(set(self._state_tensors()))

    def evaluate(self, next_batch: Callable[[], Any]) -> None:
        """Evaluate, where the workload does; the batch and the gradients of the last step are still there.

        Args:
            next_batch: returns the next batch to evaluate on the device.

        Raises:
            EvaluationError: the workload's function raised.
        """
        if self._workload.evaluate is None:
            return
        self._recording.phase = Phase.EVALUATION
        evaluate_batches(
            self._computing_model,
            functools.partial(call_evaluation, self._workload.evaluate),
            next_batch,
            context=lambda: autocast_of(self._workload, self._recipe, "cpu"),
        )
        gc.collect()

    @property
    def notes(self) -> tuple[str, ...]:
        """Say what may grow in later steps, and if the optimizer's state may leave the card."""
        optimizers = self._optimizers()
        full_state = "".join(map(_full_history, optimizers))
        before, after = self._left[-2:]
        states, early = self._state_tensors(), self._with_state[-2:][0]
        first = [tensor for parameter, held in states.items() if parameter not in early for tensor in held]
        after = after - self._ledger.blocks_of(first)
        grows = growth_notes(self._recording, before, after, full_state=full_state)
        grows += self._notes_on_later_states(states) if first else ()
        is_paged = self._on_cuda and any(getattr(each, "is_paged", False) for each in optimizers)  # of bitsandbytes
        return (*grows, _PAGED) if is_paged else grows

    def _notes_on_later_states(self, states: Mapping[int, list[torch.Tensor]]) -> tuple[str, ...]:
        """Say what parameters that had no gradient so far may add to the optimizer's state."""
        sizes = {id(each): each.nbytes for each in self._model.parameters() if each.requires_grad}
        without_bytes = sum(size for each, size in sizes.items() if each not in states)
        parameter_bytes = sum(size for each, size in sizes.items() if each in states)
        state_bytes = sum(each.nbytes for held in states.values() for each in held)
        if not without_bytes or not parameter_bytes:
            return ()
        later = later_state_note(state_bytes=state_bytes, parameter_bytes=parameter_bytes, without_bytes=without_bytes)
        return (later,)

    def _state_tensors(self) -> dict[int, list[torch.Tensor]]:
        """Return the tensors of the state of each parameter that has one, by the parameter's identity."""
        states = optimizer_states(self._optimizers())
        return {id(parameter): held for parameter, state in states if (held := tensors_in(state))}

    def _place_model(self) -> None:
        for module_name, module in self._placed_modules():
            for tensors, component in (
                (module.named_parameters(recurse=False), Component.PARAMETERS),
                (module.named_buffers(recurse=False), Component.BUFFERS),
            ):
                for name, tensor in tensors:
                    self._owners.setdefault(id(tensor), module_name)
                    if component is Component.BUFFERS or self._places_weights:
                        self._ledger.track_all(
                            (tensor, *auxiliary_tensors(tensor)), component, module=module_name, operator=name
                        )
            if self._on_cuda and isinstance(module, nn.RNNBase):
                self._flatten_weights(module, module_name)
        if not self._on_cuda:  # moving a model to a card leaves these on the host
            unregistered = unregistered_tensors(self._model)
            self._ledger.track_all(unregistered, Component.BUFFERS, module="", operator="attribute")

    @property
    def _places_weights(self) -> bool:
        """Whether the weights are on the device before the optimizer is made."""
        return True

    def _flatten_weights(self, layers: nn.RNNBase, module_name: str) -> None:
        parts = [each.data for each in layers.parameters(recurse=False)]
        buffer = flatten_weights(layers)
        if buffer is not None:  # before what it was copied from is freed
            self._ledger.track(buffer, Component.PARAMETERS, module=module_name, operator="weights")
        parts.clear()

    def _placed_modules(self) -> list[tuple[str, nn.Module]]:
        """Return the modules by name; a card gets each after its children (``nn.Module._apply``)."""
        names = {module: name_without_wrappers(name) for name, module in self._model.named_modules()}
        return [(names[each], each) for each in (_children_first(self._model, {}) if self._on_cuda else names)]

    @property
    def _computing_model(self) -> nn.Module:
        """What the workload's functions compute with."""
        return self._model

    def _zero_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=self._workload.zero_grad_set_to_none)

    def _step_the_optimizer(self) -> None:
        if self._workload.grad_clip_norm is not None:
            foreach = True if self._on_cuda and runs_multi_tensor(self._model.parameters()) else None
            clip_gradients(self._model, self._workload.grad_clip_norm, foreach=foreach)
        call_user("optimizer step", self.optimizer.step)
        check_step(self.optimizer, self._model, self._workload.optimizer)

    def _prepare_optimizer(self) -> None:
        if self._recipe.precision is Precision.FP16:
            self._scale = torch.ones(())
        if self._workload.ema:
            self._average = make_moving_average(self._model)
        self._mark(self._average.values(), Component.OPTIMIZER_STATE)
        self._mark_state()

    def _micro_step(self, index: int) -> torch.Tensor:
        self._recording.phase = Phase.FORWARD
        self._batch = None  # a loop drops the last batch before the next is moved to the device
        self._batch = self._next_batch()
        before = self._ledger.live_blocks()
        is_last = index == self._recipe.accumulation_steps - 1
        begin_pass(self._model, self._workload, is_last=is_last)
        loss, scaled = self._forward(self._batch)
        gc.collect()
        before = self._name_what_is_left(before, Component.ACTIVATIONS)
        self._name_replaced_parameters()
        if index == 0 and self._workload.zero_grad_before_backward:
            self._zero_gradients()
        self._recording.phase = Phase.BACKWARD
        self._run_backward(scaled)
        self._name_what_is_left(before, Component.GRADIENTS)
        if is_last:
            self._check_gradients()
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                self._mark([parameter.grad], Component.GRADIENTS, owner=parameter)
        return loss.detach()

    def _run_backward(self, loss: torch.Tensor) -> None:
        call_user("backward pass of the loss", loss.backward)

    def _check_gradients(self) -> None:
        if not any(map(_may_have_gradient, self._model.parameters())):
            raise WorkloadError(
                f"the workload's loss {name_of(self._workload.loss)} depends on no parameter of the model it was given",
                hint="compute the loss with the model that the function is given, not with another",
            )

    def _name_what_is_left(self, before: set[int], component: Component) -> set[int]:
        """Set the component of new blocks that outlive a pass, unless they have one; return what is live."""
        live = self._ledger.live_blocks()
        for block in live - before:
            if self._recording.components[block] is Component.TEMPORARIES:
                self._recording.components[block] = component
        return live

    def _name_replaced_parameters(self) -> None:
        """Set the component of what code puts in the place of parameters' data, as momentum encoders do."""
        for parameter in self._model.parameters():
            for block in self._ledger.blocks_of(parts_of(parameter)):
                if self._recording.components[block] in _UNNAMED:
                    self._recording.attribute(block, Component.PARAMETERS, module=self._owners.get(id(parameter), ""))

    def _forward(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        with autocast_of(self._workload, self._recipe, "cpu"):
            made = call_user("loss", self._workload.loss, self._computing_model, batch)
            loss = checked_loss(made, self._workload.loss)
            return loss, self._scaled(loss)

    def _scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss that the backward pass is run of."""
        scaled = loss / self._recipe.accumulation_steps if self._recipe.accumulation_steps > 1 else loss
        return scaled if self._scale is None else scaled * self._scale

    def _optimizers(self) -> tuple[Optimizer, ...]:
        return optimizers_of(self.optimizer, self._model.parameters())

    def _mark_state(self) -> None:
        optimizers = self._optimizers()
        for parameter, state in optimizer_states(optimizers):
            self._mark(tensors_in(state), Component.OPTIMIZER_STATE, owner=parameter)
        self._mark(stepped_copies(optimizers, self._model.parameters()), Component.OPTIMIZER_STATE)
        if self._on_cuda:
            for block in self._ledger.blocks_of(each for one in optimizers for each in _host_counters(one)):
                self._recording.block_bytes[block] = 0

    def _mark(
        self, tensors: Iterable[torch.Tensor], component: Component, *, owner: torch.Tensor | None = None
    ) -> None:
        module = self._owners.get(id(owner), "")
        for block in self._ledger.blocks_of(tensors):
            self._recording.attribute(block, component, module=module)


def _children_first(module: nn.Module, found: dict[nn.Module, None]) -> dict[nn.Module, None]:
    for child in module.children():
        if child not in found:
            _children_first(child, found)
    found[module] = None
    return found


def _full_history(optimizer: Optimizer) -> str:
    """Say what L-BFGS holds in the end: a step and a change of the gradient per update (``torch/optim/lbfgs.py``)."""
    if not isinstance(optimizer, torch.optim.LBFGS):
        return ""
    (group,) = optimizer.param_groups
    size_bytes = 2 * group["history_size"] * sum(each.nbytes for each in group["params"])
    return _FULL_HISTORY.format(count=group["history_size"], size=format_bytes(size_bytes))


def _may_have_gradient(parameter: torch.Tensor) -> bool:
    """Whether the backward pass may have made a gradient; hooks that run the optimizer in it leave none."""
    return parameter.grad is not None or bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def _host_counters(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return step counters on the host, where they stay unless an optimizer is fused or capturable (``adam.py``)."""
    groups, states = getattr(optimizer, "param_groups", ()), getattr(optimizer, "state", {})
    if any(group.get("fused") or group.get("capturable") for group in groups):
        return []
    steps = [state.get("step") for state in states.values() if isinstance(state, Mapping)]
    return [each for each in steps if isinstance(each, torch.Tensor) and each.dim() == 0]


def _use_fused(optimizer: Optimizer) -> None:
    """Use the fused implementation in every parameter group.

    Raises:
        WorkloadError: the optimizer has none, or uses it already.
    """
    if any("fused" not in group for group in optimizer.param_groups):
        raise WorkloadError(f"{type(optimizer).__name__} has no fused implementation")
    if all(group["fused"] for group in optimizer.param_groups):
        raise WorkloadError(f"{type(optimizer).__name__} is fused already")
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
