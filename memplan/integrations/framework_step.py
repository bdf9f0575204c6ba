"""The common part of the frameworks' training steps: callables that make a workload."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from memplan.workload import Workload
from memplan.worst_case import KnowsSamples

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    from torch import nn

RUN_AS_IT_IS = (  # a hint
    'memplan probe --command "python train.py ... {micro_batch_size}" plans such a script as it is; or describe one '
    "step with memplan.Workload and call memplan.plan"
)


class FrameworkStep(KnowsSamples):
    """A step as a framework's own loop runs it, in the callables of a workload.

    Class attributes say where the loop zeroes gradients.
    """

    zero_grad_before_backward: ClassVar[bool] = False
    zero_grad_after_step: ClassVar[bool] = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the user should know of the sizes of batches; nothing where they are those of the samples."""
        return ()

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
    def training_samples(self) -> int | None:
        """Return how many samples the training data have; None where that cannot be told."""

    @abstractmethod
    def loader(self, micro_batch_size: int) -> Iterable[Any] | None:
        """Make the loader of the training data as the framework would; None where its batches cannot be resized."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Run the forward pass and return the loss."""

    @abstractmethod
    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the optimizer as the framework would."""

    @abstractmethod
    def evaluate(self, model: nn.Module, batch: Any) -> Any:
        """Run the forward pass of an evaluation, and return what is kept of it until the next one."""

    @abstractmethod
    def evaluation_batch(self, micro_batch_size: int) -> Any:
        """Collate the largest samples of the evaluation data."""

    def workload(self, *, grad_clip_norm: float | None, evaluates: bool = False, ema: bool = False) -> Workload:
        """Return the workload of these callables.

        Args:
            grad_clip_norm: largest gradient norm; None where gradients are not clipped.
            evaluates: whether the loop evaluates between steps.
            ema: whether a hook keeps a moving average of the parameters.
        """
        return Workload(
            model=self.model,
            batch=self.batch,
            loss=self.loss,
            optimizer=self.optimizer,
            grad_clip_norm=grad_clip_norm,
            ema=ema,
            typical_batch=self.typical_batch,
            sample_sizes=self.sample_sizes,
            training_samples=self.training_samples,
            loader=self.loader,
            zero_grad_before_backward=self.zero_grad_before_backward,
            zero_grad_after_step=self.zero_grad_after_step,
            evaluate=self.evaluate if evaluates else None,
            evaluation_batch=self.evaluation_batch if evaluates else None,
        )
