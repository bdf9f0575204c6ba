"""The traced training step of DeepSpeed's engine."""

from __future__ import annotations

import functools
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from memplan.estimators.fake_tensors.replaced import replaced
from memplan.estimators.recorder.training_step import TracedStep
from memplan.estimators.recorder.user_calls import call_user
from memplan.results import Phase
from memplan.training.deepspeed_engine import make_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn

_NORM_CHECK = "is_invalid_grad_norm"  # a function of DeepSpeed that reads one; older versions have none


@contextmanager
def _norms_taken_as_valid() -> Iterator[None]:
    """Let DeepSpeed find norms of gradients finite, which it asks where it clips them, while the context is open."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("deepspeed.runtime.") and hasattr(module, _NORM_CHECK):
                stack.enter_context(replaced(module, _NORM_CHECK, lambda _: False))
        yield


class EngineStep(TracedStep):
    """Runs steps of a workload by DeepSpeed's engine, which steps after the last pass and then frees the gradients."""

    _engine: Any

    @property
    def _computing_model(self) -> nn.Module:
        return self._engine  # type: ignore[no-any-return]  # a module, of an untyped package

    @property
    def _places_weights(self) -> bool:
        return not (self._on_cuda and self._workload.weights_arrive_sharded)

    def _prepare_optimizer(self) -> None:
        make = functools.partial(make_engine, on_card=self._on_cuda, card_is_there=False)
        self._engine = call_user("DeepSpeed engine", make, self._model, self.optimizer, self._workload, self._recipe)
        self._name_replaced_parameters()
        self._mark_state()

    def _scaled(self, loss: torch.Tensor) -> torch.Tensor:
        return loss  # which the engine scales

    def _run_backward(self, loss: torch.Tensor) -> None:
        call_user("backward pass of the loss", self._engine.backward, loss)

    def _check_gradients(self) -> None:
        """Leave out what cannot be told: gradients are where the engine keeps its parts of them."""

    def _micro_step(self, index: int) -> torch.Tensor:
        loss = super()._micro_step(index)
        self._recording.phase = Phase.OPTIMIZER_STEP
        with _norms_taken_as_valid():
            call_user("optimizer step", self._engine.step)
        return loss

    def _step_the_optimizer(self) -> None:
        """Do nothing: the engine has stepped after the last pass."""

    def _zero_gradients(self) -> None:
        """Do nothing: the engine frees gradients after its step."""
