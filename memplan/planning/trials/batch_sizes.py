"""The micro-batches that trials of one plan may have: any, or those that hold a global batch by accumulation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.recommend.scaling import split_global_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memplan.recipe import Recipe
    from memplan.results import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizes:
    """The micro-batches that trials may have.

    Args:
        current: the recipe that the subject has now.
        global_batch_size: samples per optimizer step to hold; None leaves it free.
        largest: largest micro-batch that is tried.
    """

    current: Recipe
    global_batch_size: int | None
    largest: int

    def in_order(self) -> Sequence[int]:
        """Return the micro-batches that may be tried, in ascending order.

        Raises:
            UsageError: the global batch is not a multiple of the number of replicas.
        """
        sizes = range(1, self.largest + 1)
        if self.global_batch_size is None:
            return sizes
        return [size for size, _ in split_global_batch(self.global_batch_size, self.current.world_size, sizes)]

    def at(self, recipe: Recipe, micro_batch_size: int) -> Recipe:
        """Return a recipe at another micro-batch, with the accumulation that holds the global batch."""
        if self.global_batch_size is None:
            return recipe.with_micro_batch_size(micro_batch_size)
        steps = self.global_batch_size // (micro_batch_size * recipe.world_size)
        return replace(recipe, micro_batch_size=micro_batch_size, accumulation_steps=steps)

    def candidates(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return the trials that may be recommended: those that hold the global batch, or accumulate as now."""
        trials = [trial for trial in trials if trial.recipe.micro_batch_size <= self.largest]
        if self.global_batch_size is None:
            steps = self.current.accumulation_steps
            return [trial for trial in trials if trial.recipe.accumulation_steps == steps]
        return [trial for trial in trials if trial.recipe.global_batch_size == self.global_batch_size]
