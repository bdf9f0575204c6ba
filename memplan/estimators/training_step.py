"""The training step that is traced, phase by phase, in the order a live trial runs it."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.batches import tensors_in
from memplan.estimators.step_trace import Category
from memplan.estimators.user_calls import call_user, checked_loss
from memplan.recipe import Precision
from memplan.results import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from torch import nn
    from torch.optim import Optimizer

    from memplan.estimators.recording import Recording
    from memplan.estimators.storages import StorageLedger
    from memplan.recipe import Recipe
    from memplan.workload import Workload

_AUTOCAST = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}


class TracedStep:
    """Runs optimizer steps of a workload and says, as it goes, what the recorded blocks hold."""

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
    ) -> None:
        self._workload = workload
        self._recipe = recipe
        self._model = model
        self._next_batch = next_batch
        self._recording = recording
        self._ledger = ledger
        self._on_cuda = on_cuda
        self._batch: Any = None
        self._loss: torch.Tensor | None = None

    def place_model(self) -> None:
        """Record the model's own tensors as resident."""
        for module_name, module in self._model.named_modules():
            for tensors, category in (
                (module.named_parameters(recurse=False), Category.PARAMETERS),
                (module.named_buffers(recurse=False), Category.BUFFERS),
            ):
                for name, tensor in tensors:
                    self._ledger.see(tensor, category, module=module_name, operator=name)

    def make_optimizer(self) -> Optimizer:
        """Make the workload's optimizer; some allocate their state here."""
        optimizer: Optimizer = call_user("optimizer", self._workload.optimizer, self._model.parameters())
        if self._on_cuda:
            _choose_foreach(optimizer)
        self._mark(_state_tensors(optimizer), Category.OPTIMIZER_STATE)
        return optimizer

    def run(self, optimizer: Optimizer) -> None:
        """Run one optimizer step: zero the gradients, accumulate, clip, step."""
        self._recording.phase = Phase.FORWARD
        optimizer.zero_grad(set_to_none=self._workload.zero_grad_set_to_none)
        for _ in range(self._recipe.accumulation_steps):
            self._forward()
            self._backward()
        self._recording.phase = Phase.OPTIMIZER_STEP
        if self._workload.grad_clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(
                self._model.parameters(), self._workload.grad_clip_norm, foreach=True if self._on_cuda else None
            )
        call_user("optimizer step of", optimizer.step)
        self._mark(_state_tensors(optimizer), Category.OPTIMIZER_STATE)

    def _forward(self) -> None:
        self._recording.phase = Phase.FORWARD
        self._take_batch()
        before = self._ledger.live_blocks()
        with self._autocast():
            loss = call_user("loss", self._workload.loss, self._model, self._batch)
        self._loss = checked_loss(loss, self._workload.loss)
        del loss
        gc.collect()
        for block in self._ledger.live_blocks() - before:
            self._recording.categories[block] = Category.ACTIVATIONS

    def _take_batch(self) -> None:
        batch = self._next_batch()
        for tensor in tensors_in(batch):
            self._ledger.see(tensor, Category.INPUTS, module="", operator="batch")
        self._batch = batch

    def _backward(self) -> None:
        self._recording.phase = Phase.BACKWARD
        assert self._loss is not None  # noqa: S101 - set by _forward
        scaled = self._loss / self._recipe.accumulation_steps if self._recipe.accumulation_steps > 1 else self._loss
        call_user("backward pass of", scaled.backward)
        gradients = [each.grad for each in self._model.parameters() if each.grad is not None]
        self._mark(gradients, Category.GRADIENTS)

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = _AUTOCAST.get(self._recipe.precision)
        return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)

    def _mark(self, tensors: Iterable[torch.Tensor], category: Category) -> None:
        for block in self._ledger.blocks_of(tensors):
            self._recording.categories[block] = category


def _state_tensors(optimizer: Optimizer) -> list[torch.Tensor]:
    return [value for state in optimizer.state.values() for value in tensors_in(dict(state))]


def _choose_foreach(optimizer: Optimizer) -> None:
    # Fake parameters fail the type test by which optimizers choose the multi-tensor path for CUDA parameters.
    for group in optimizer.param_groups:
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True
