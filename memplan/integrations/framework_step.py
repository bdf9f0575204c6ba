"""The common part of the frameworks' training steps: four callables that make a workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    from torch import nn


class FrameworkStep(ABC):
    """A step as a framework's own loop runs it, in the callables of a workload."""

    @abstractmethod
    def model(self) -> nn.Module:
        """Build the model as the framework would."""

    @abstractmethod
    def batch(self, micro_batch_size: int) -> Any:
        """Collate the largest samples of the training data."""

    @abstractmethod
    def typical_batch(self, micro_batch_size: int) -> Any | None:
        """Collate the samples nearest to the median in size; None where they do not differ."""

    @abstractmethod
    def sample_sizes(self) -> Sequence[float]:
        """Return how large samples are, as shares of the largest; none where that cannot be told."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Run the forward pass and return the loss."""

    @abstractmethod
    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the optimizer as the framework would."""

    def workload(self, *, grad_clip_norm: float | None, ema: bool = False) -> Workload:
        """Return the workload of these callables, with a moving average of the parameters where a hook keeps one."""
        return Workload(
            model=self.model,
            batch=self.batch,
            loss=self.loss,
            optimizer=self.optimizer,
            grad_clip_norm=grad_clip_norm,
            ema=ema,
            typical_batch=self.typical_batch,
            sample_sizes=self.sample_sizes,
        )
