"""The training step that trials run: the user's callables, put together as a plain PyTorch loop would.

Imports torch; child processes only. The step is::

    zero_grad -> accumulation_steps x (forward and loss -> backward of loss / accumulation_steps)
              -> unscale (fp16) -> clip -> optimizer step -> update of the loss scale and the moving average

A trial's batch is made once and reused, and moved to the device again in every micro-step, so that making data is
neither timed nor counted. Evaluation comes between steps, where the workload evaluates.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from memplan.probe.failures import blamed_on_user
from memplan.recipe import Precision
from memplan.training.batches import map_tensors
from memplan.training.checkpointing import enable_checkpointing
from memplan.training.deepspeed_engine import make_engine
from memplan.training.evaluation import evaluate_batches
from memplan.training.gradient_buckets import make_buckets
from memplan.training.half_precision import weights_dtype
from memplan.training.moving_average import make_moving_average, update_moving_average
from memplan.training.sharding import (
    autocast_of,
    begin_pass,
    clip_gradients,
    join_absent_replicas,
    offloads_shards,
    shard_model,
)
from memplan.training.workload_contract import (
    check_batch_is_full,
    check_batches,
    checked_loss,
    checked_model,
    checked_optimizer,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.recipe import Recipe
    from memplan.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """Everything that lives from step to step."""

    workload: Workload
    recipe: Recipe
    device: torch.device
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    batch: Any
    scaler: torch.amp.GradScaler | None
    moving_average: dict[str, torch.Tensor]
    buckets: list[torch.Tensor]  # in the place of those that data-parallel training keeps beside the gradients
    engine: Any = None  # DeepSpeed's, which runs passes and steps
    held: list[Any] = field(default_factory=list)

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the model's parameters, tied ones once."""
        return list(self.model.parameters())

    @property
    def computing_model(self) -> torch.nn.Module:
        """What the workload's functions compute with."""
        return self.model if self.engine is None else self.engine

    @property
    def loss_scale(self) -> float | None:
        """By what the loss is multiplied, lest gradients in fp16 vanish; None in other precisions."""
        if self.scaler is not None:
            return float(self.scaler.get_scale())
        is_scaled = self.engine is not None and self.recipe.precision is Precision.FP16
        return float(self.engine.optimizer.loss_scale) if is_scaled else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMarks:
    """Called between phases: when ``forward`` starts and ends, ``backward`` has ended, or a batch is evaluated."""

    forward_starts: Callable[[], None]
    forward_ends: Callable[[Any], None]
    backward_ended: Callable[[], None]
    evaluation_starts: Callable[[Any], None]


def _nothing(*_: object) -> None:
    return None


NO_MARKS = StepMarks(
    forward_starts=_nothing, forward_ends=_nothing, backward_ended=_nothing, evaluation_starts=_nothing
)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch on all devices."""
    random.seed(seed)
    np.random.seed(seed)  # user code may draw from the legacy generator
    torch.manual_seed(seed)


def build_training(
    workload: Workload,
    recipe: Recipe,
    device: torch.device,
    seed: int,
    *,
    configured_learning_rate: float | None = None,
) -> TrainingState:
    """Build model, optimizer and batch for one recipe; the same seed gives the same weights and batch every time.

    Args:
        workload: the user's callables.
        recipe: what to run.
        device: where to put the model.
        seed: of weights and batch.
        configured_learning_rate: rate the workload makes its optimizer with; None leaves the optimizer's rates alone.

    Raises:
        WorkloadError: a callable returns something else than its contract says.
        UserCodeError: a callable raises.
    """
    seed_everything(seed)
    model = _prepared_model(workload, recipe, device)
    with blamed_on_user():
        optimizer = checked_optimizer(workload.optimizer(model.parameters()), workload.optimizer)
    if recipe.learning_rate is not None and configured_learning_rate:
        _scale_learning_rates(optimizer, recipe.learning_rate / configured_learning_rate)
    engine = _made_engine(workload, recipe, model, optimizer, device)
    seed_everything(seed)
    with blamed_on_user():
        batch = workload.batch(recipe.micro_batch_size)
    _check_batch_follows_size(workload, recipe.micro_batch_size, batch)
    is_scaled_here = recipe.precision is Precision.FP16 and workload.deepspeed is None
    return TrainingState(
        workload=workload,
        recipe=recipe,
        device=device,
        model=model,
        optimizer=optimizer,
        batch=batch,
        scaler=torch.amp.GradScaler(device.type) if is_scaled_here else None,
        moving_average=make_moving_average(model) if workload.ema else {},
        buckets=make_buckets(model, workload, recipe, device),
        engine=engine,
    )


def _made_engine(
    workload: Workload, recipe: Recipe, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> Any:
    if workload.deepspeed is None:
        return None
    with blamed_on_user():
        return make_engine(model, optimizer, workload, recipe, on_card=device.type == "cuda")


def _prepared_model(workload: Workload, recipe: Recipe, device: torch.device) -> torch.nn.Module:
    with blamed_on_user():
        model = checked_model(workload.model(), workload.model)
    with blamed_on_user():
        if recipe.activation_checkpointing:
            enable_checkpointing(model)
        # converted on the host, so that the device never holds what they are converted from
        _convert_weights(model, workload, recipe)
        if workload.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # stub lacks this form
        if workload.spans_replicas:
            join_absent_replicas(recipe.world_size, device.type)
        if workload.shard is not None:
            model = shard_model(model, workload.shard, recipe)
        if workload.weights_arrive_sharded:  # when it is made
            _move_buffers(model, device)
        elif not offloads_shards(model):  # FSDP has put buffers on the device, and refuses shards there
            model.to(device)
    if workload.shard is not None and device.type == "cuda":
        torch.cuda.empty_cache()  # a training that makes only its shards on the card has no whole layers to cache
    if device.type == "cuda" and recipe.precision is Precision.TF32:
        _allow_tf32()
    return model


def _convert_weights(model: torch.nn.Module, workload: Workload, recipe: Recipe) -> None:
    """Convert what a model is made of, of which DeepSpeed leaves buffers as they are."""
    half = weights_dtype(workload, recipe)
    if half is not None and workload.deepspeed is None:
        model.to(half)
    elif half is not None:
        for each in model.parameters():
            each.data = each.data.to(half) if each.is_floating_point() else each.data


def _move_buffers(model: torch.nn.Module, device: torch.device) -> None:
    for module in model.modules():
        for name, buffer in module._buffers.items():  # noqa: SLF001 - those of the module alone
            module._buffers[name] = None if buffer is None else buffer.to(device)  # noqa: SLF001 - as above


def _allow_tf32() -> None:
    """Allow it everywhere; fp32 is left as the user's code or torch's defaults have it: in convolutions alone."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def _scale_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Scale every group alike, so that their ratios stay; an optimizer that finds its own rate has None there."""
    for group in optimizer.param_groups if factor != 1 else ():
        if group.get("lr") is not None:
            group["lr"] = group["lr"] * factor


def _check_batch_follows_size(workload: Workload, size: int, batch: Any) -> None:
    """Refuse a batch function that ignores its argument or has too few samples; a size it cannot make tells nothing."""
    other = max(size // 2, 1) if size > 1 else 2
    try:
        batches = {size: batch, other: workload.batch(other)}
    except Exception:  # noqa: BLE001 - the batch that counts was made, and this one is only for comparison
        return
    check_batches(workload, batches)
    check_batch_is_full(workload, batches)


def _on_device(state: TrainingState, batch: Any) -> Any:
    half = weights_dtype(state.workload, state.recipe)

    def moved(given: torch.Tensor) -> torch.Tensor:
        tensor = given.detach()  # a gradient that a step leaves on its batch must not be met by the next
        tensor = tensor.to(state.device, half if half is not None and tensor.is_floating_point() else tensor.dtype)
        if state.workload.channels_last and tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor.requires_grad_(given.requires_grad)

    return map_tensors(moved, batch)


def run_optimizer_step(state: TrainingState, marks: StepMarks = NO_MARKS) -> float:
    """Run one full optimizer step and return its mean loss; the device may still be busy afterwards.

    Raises:
        WorkloadError: the loss is not a scalar that can be differentiated.
        UserCodeError: the model, the loss or the optimizer raises.
    """
    if not (state.workload.zero_grad_before_backward or state.workload.zero_grad_after_step):
        zero_gradients(state)
    losses = [_run_micro_step(state, marks, index) for index in range(state.recipe.accumulation_steps)]
    with blamed_on_user():
        _step_the_optimizer(state)
    if state.workload.zero_grad_after_step:
        zero_gradients(state)
    if state.workload.ema:
        update_moving_average(state.moving_average, state.model)
    return sum(float(loss) for loss in losses) / len(losses)


def run_evaluation(state: TrainingState, marks: StepMarks = NO_MARKS) -> None:
    """Evaluate as between two steps, where the workload does; gradients and batch of the last step are still there.

    Raises:
        UserCodeError: the workload's evaluation or its batch function raises.
    """
    workload, recipe = state.workload, state.recipe
    if workload.evaluate is None:
        return

    def next_batch() -> Any:
        made = state.batch if workload.evaluation_batch is None else workload.evaluation_batch(recipe.micro_batch_size)
        batch = _on_device(state, made)
        marks.evaluation_starts(batch)
        return batch

    with blamed_on_user():
        evaluate_batches(
            state.computing_model,
            workload.evaluate,
            next_batch,
            context=lambda: autocast_of(workload, recipe, state.device.type),
        )


def zero_gradients(state: TrainingState) -> None:
    """Free the gradients or fill them with zeros, as the workload wants it; DeepSpeed's engine does so by itself."""
    if state.engine is not None:
        return
    with blamed_on_user():
        state.optimizer.zero_grad(set_to_none=state.workload.zero_grad_set_to_none)


def _step_the_optimizer(state: TrainingState) -> None:
    if state.engine is not None:  # which has stepped after the last pass
        return
    if state.workload.grad_clip_norm is not None:
        if state.scaler is not None:
            state.scaler.unscale_(state.optimizer)
        clip_gradients(state.model, state.workload.grad_clip_norm)
    if state.scaler is None:
        state.optimizer.step()
    else:
        state.scaler.step(state.optimizer)
        state.scaler.update()


def _run_micro_step(state: TrainingState, marks: StepMarks, index: int) -> torch.Tensor:
    state.held.clear()  # the name of a loop's batch has gone to the next one on the host before that is moved
    batch = _on_device(state, state.batch)
    state.held.append(batch)
    marks.forward_starts()
    begin_pass(state.model, state.workload, is_last=index == state.recipe.accumulation_steps - 1)
    with blamed_on_user(), autocast_of(state.workload, state.recipe, state.device.type):
        loss = checked_loss(state.workload.loss(state.computing_model, batch), state.workload.loss)
    marks.forward_ends(batch)
    if index == 0 and state.workload.zero_grad_before_backward:
        zero_gradients(state)
    with blamed_on_user():
        _run_backward(state, loss)
    marks.backward_ended()
    if state.engine is not None:
        with blamed_on_user():
            state.engine.step()
    return loss.detach()


def _run_backward(state: TrainingState, loss: torch.Tensor) -> None:
    if state.engine is not None:  # which scales the loss
        state.engine.backward(loss)
        return
    scaled = loss / state.recipe.accumulation_steps if state.recipe.accumulation_steps > 1 else loss
    (state.scaler.scale(scaled) if state.scaler is not None else scaled).backward()  # type: ignore[no-untyped-call]
