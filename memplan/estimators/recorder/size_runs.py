"""The micro-batch sizes at which a step is run, until block sizes follow from the runs.

Two small sizes are enough for most steps. Where a third is not on the line through them, or samples differ in size, the
recipe's own micro-batch is run, because small sizes say little about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from memplan.estimators.recorder.looping_runs import looping_timeline
from memplan.estimators.recorder.size_fits import (
    fit_timeline,
    fits,
    nearly_fits,
    needs_third_run,
    same_structure,
)
from memplan.training.batches import tensors_in
from memplan.training.dense_parts import dense_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from memplan.estimators.recorder.recording import Recording
    from memplan.estimators.recorder.step_recording import RecordedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRuns:
    """Runs of one step at several micro-batches.

    Args:
        runs: the runs; the reference is the last if samples vary, else the first.
        samples_vary: whether block sizes depend on more than the micro-batch size.
    """

    runs: tuple[RecordedRun, ...]
    samples_vary: bool = False

    @property
    def recordings(self) -> list[Recording]:
        """The recordings of the runs."""
        return [run.recording for run in self.runs]

    @property
    def reference(self) -> Recording:
        """The recording used where one size is enough."""
        return self.runs[-1 if self.samples_vary else 0].recording


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRunner:
    """Runs a step at as many sizes as its blocks need.

    Args:
        record: runs the step at a micro-batch size.
        sizes: small micro-batch sizes: two, and a third if these are not enough.
        recipe_size: the micro-batch size of the recipe.
        may_run: given a run, whether running a larger size is affordable.
    """

    record: Callable[[int], RecordedRun]
    sizes: tuple[int, ...]
    recipe_size: int
    may_run: Callable[[RecordedRun, int], bool]

    def runs_of_equal_samples(self) -> SizeRuns:
        """Run the small sizes, and larger ones if these are not on a line."""
        runs = [self.record(size) for size in self.sizes[:2]]
        recordings = [run.recording for run in runs]
        uniform = same_structure(recordings)
        if len(self.sizes) == 2 or (uniform and not needs_third_run(recordings)):
            return SizeRuns(runs=tuple(runs))
        third = self.record(self.sizes[2])
        if uniform and same_structure([recordings[0], third.recording]):
            beyond = 2 * self.sizes[2] if self.recipe_size in self.sizes else self.recipe_size
            return self._curved([*runs, third], beyond)
        if not uniform and same_structure([recordings[1], third.recording]):
            return SizeRuns(runs=(runs[1], third))  # the smallest size took another path, as for a dimension of one
        return self._of_varying_structure([*runs, third])

    def runs_of_varying_samples(self, runs: Sequence[RecordedRun] = ()) -> SizeRuns:
        """Run the recipe's size beside the small ones."""
        runs = [*(runs or [self.record(size) for size in self.sizes])]
        done = {run.recording.micro_batch_size: run for run in runs}
        largest = max(runs, key=lambda run: run.recording.micro_batch_size)
        if self.recipe_size in done:
            reference = done[self.recipe_size]
        elif self.may_run(largest, self.recipe_size):
            reference = self.record(self.recipe_size)
        else:
            reference = largest
        return SizeRuns(runs=(*(run for run in runs if run is not reference), reference), samples_vary=True)

    def _curved(self, runs: list[RecordedRun], other: int) -> SizeRuns:
        """Decide by one more size between a line with an intercept, a parabola and irregular sizes."""
        recordings = [run.recording for run in runs]
        if fits(fit_timeline(recordings[:2]), recordings[2]):
            return SizeRuns(runs=(runs[0], runs[2]))
        if not self.may_run(runs[2], other):
            return self.runs_of_varying_samples(runs)
        fourth = self.record(other)
        parabola = fit_timeline(recordings)
        if not same_structure([recordings[0], fourth.recording]) or not nearly_fits(parabola, fourth.recording):
            return self.runs_of_varying_samples([*runs, fourth])
        return SizeRuns(runs=tuple(runs) if fits(parabola, fourth.recording) else (*runs, fourth))

    def _of_varying_structure(self, runs: list[RecordedRun]) -> SizeRuns:
        """Run half of the recipe's size and all of it, because the number of blocks depends on the size.

        Where it does so by loops over samples, small sizes are enough. Chunks of a batch are half as many rows at half
        of the size.
        """
        looping = None if any(run.divides_batch for run in runs) else self._of_loops(runs)
        if looping is not None:
            return looping
        if self.recipe_size in self.sizes or not self.may_run(runs[-1], self.recipe_size):
            return SizeRuns(runs=tuple(runs))
        if self.recipe_size < max(self.sizes):
            return SizeRuns(runs=(*runs, self.record(self.recipe_size)))
        around = [self.record(self.recipe_size // 2), self.record(self.recipe_size)]
        if not _is_doubtful(around):
            return SizeRuns(runs=tuple(around))
        if self.may_run(around[1], 2 * self.recipe_size):
            doubled = self.record(2 * self.recipe_size)
            if same_structure([around[0].recording, doubled.recording]):
                return self._curved([*around, doubled], 3 * self.recipe_size // 2)
        return SizeRuns(runs=tuple(around), samples_vary=True)

    def _of_loops(self, runs: list[RecordedRun]) -> SizeRuns | None:
        """Return runs that differ by rounds of loops, of which the first two and the last may be unlike the others."""
        event_counts = [len(run.recording.event_blocks) for run in runs]
        if not all(fewer < more for fewer, more in pairwise(event_counts)):
            return None
        last = runs[-1].recording.micro_batch_size
        for further in ((), (last + 1, last + 2)):
            runs = [*runs, *map(self.record, further)]
            timeline = looping_timeline([run.recording for run in runs])
            if timeline is not None and timeline.loops is not None:
                is_known = self.recipe_size >= timeline.loops.least_samples or self.recipe_size in self.sizes
                own = () if is_known else (self.record(self.recipe_size),)
                ascending = sorted((*own, *runs), key=lambda run: run.recording.micro_batch_size)
                return SizeRuns(runs=tuple(ascending))
        return None


def _is_doubtful(runs: Sequence[RecordedRun]) -> bool:
    """Whether two runs of one structure do not determine how blocks grow."""
    recordings = [run.recording for run in runs]
    return same_structure(recordings) and needs_third_run(recordings)


def have_tensors_by_sample(batches: Mapping[int, Any]) -> bool:
    """Whether batches hold a tensor for each sample, such as a list of images, so that their number differs."""
    return len({len(_parts_of(batch)) for batch in batches.values()}) > 1


def samples_vary(batches: Mapping[int, Any]) -> bool:
    """Whether a dimension of the batches' tensors is not linear in the micro-batch size: samples differ in size.

    With two batches, a dimension must be constant or proportional. Batches with one tensor per sample are left out,
    because the number of their blocks differs.
    """
    if have_tensors_by_sample(batches):
        return False
    sizes = list(batches)
    shapes = [[tuple(each.shape) for each in _parts_of(batch)] for batch in batches.values()]
    dimensions = (found for of_tensor in zip(*shapes, strict=True) for found in zip(*of_tensor, strict=False))
    return any(not _is_linear(found, sizes) for found in dimensions)


def _parts_of(batch: Any) -> list[torch.Tensor]:
    return [part for each in tensors_in(batch) for part in dense_parts(each)]


def _is_linear(found: Sequence[int], sizes: Sequence[int]) -> bool:
    rise, run = found[1] - found[0], sizes[1] - sizes[0]
    if len(found) == 2:
        return rise == 0 or found[0] * sizes[1] == found[1] * sizes[0]
    return all((each - found[0]) * run == rise * (size - sizes[0]) for each, size in zip(found, sizes, strict=True))
