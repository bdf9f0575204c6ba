"""At which micro-batches a step is run, until the sizes of its blocks follow from the runs.

Two small ones do for most steps. Where a third does not lie on the line through them, or the samples of the batches
differ in size, the recipe's own micro-batch is run: what few samples take says little of what many will.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.estimators.recorder.batches import tensors_in
from memplan.estimators.recorder.size_fits import (
    fit_timeline,
    fits,
    nearly_fits,
    needs_third_run,
    same_structure,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memplan.estimators.recorder.recording import Recording
    from memplan.estimators.recorder.step_recording import RecordedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRuns:
    """Runs of one step at several micro-batches.

    Args:
        runs: the runs; where samples vary, the one that figures are taken from is the last.
        samples_vary: whether sizes of blocks are no matter of the micro-batch alone.
    """

    runs: tuple[RecordedRun, ...]
    samples_vary: bool = False

    @property
    def recordings(self) -> list[Recording]:
        """What the runs recorded."""
        return [run.recording for run in self.runs]

    @property
    def reference(self) -> Recording:
        """The run that figures are taken from."""
        return self.runs[-1 if self.samples_vary else 0].recording


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRunner:
    """Runs a step at the sizes that its blocks ask for.

    Args:
        record: runs the step at a micro-batch.
        sizes: small micro-batches: two to begin with, and perhaps a third.
        own: the micro-batch that is asked about.
        may_run: whether a larger micro-batch than that of a run may be run, which may take too long.
    """

    record: Callable[[int], RecordedRun]
    sizes: tuple[int, ...]
    own: int
    may_run: Callable[[RecordedRun, int], bool]

    def runs_of_equal_samples(self) -> SizeRuns:
        """Run the small sizes, and larger ones where these do not lie on a line."""
        runs = [self.record(size) for size in self.sizes[:2]]
        recordings = [run.recording for run in runs]
        uniform = same_structure(recordings)
        if len(self.sizes) == 2 or (uniform and not needs_third_run(recordings)):
            return SizeRuns(runs=tuple(runs))
        third = self.record(self.sizes[2])
        if uniform and same_structure([recordings[0], third.recording]):
            return self._curved([*runs, third])
        if not uniform and same_structure([recordings[1], third.recording]):
            return SizeRuns(runs=(runs[1], third))  # the smallest size took a path of its own: one of a dimension
        return self._uneven([*runs, third])

    def runs_of_varying_samples(self, runs: Sequence[RecordedRun] = ()) -> SizeRuns:
        """Run the micro-batch that is asked about, beside the small ones."""
        runs = [*(runs or [self.record(size) for size in self.sizes])]
        done = {run.recording.micro_batch_size: run for run in runs}
        largest = max(runs, key=lambda run: run.recording.micro_batch_size)
        if self.own in done:
            own = done[self.own]
        elif self.may_run(largest, self.own):
            own = self.record(self.own)
        else:
            own = largest
        return SizeRuns(runs=(*(run for run in runs if run is not own), own), samples_vary=True)

    def _curved(self, runs: list[RecordedRun]) -> SizeRuns:
        """Tell a line with a beginning, and a curve, from sizes that follow no rule, by one more size."""
        recordings = [run.recording for run in runs]
        if fits(fit_timeline(recordings[:2]), recordings[2]):
            return SizeRuns(runs=(runs[0], runs[2]))
        beyond = 2 * self.sizes[2] if self.own in self.sizes else self.own
        if not self.may_run(runs[2], beyond):
            return self.runs_of_varying_samples(runs)
        fourth = self.record(beyond)
        parabola = fit_timeline(recordings)
        if not same_structure([recordings[0], fourth.recording]) or not nearly_fits(parabola, fourth.recording):
            return self.runs_of_varying_samples([*runs, fourth])
        return SizeRuns(runs=tuple(runs) if fits(parabola, fourth.recording) else (*runs, fourth))

    def _uneven(self, runs: list[RecordedRun]) -> SizeRuns:
        """Run half of the size that is asked about, and all of it: the number of blocks depends on the samples."""
        if self.own in self.sizes or not self.may_run(runs[-1], self.own):
            return SizeRuns(runs=tuple(runs))
        if self.own < max(self.sizes):
            return SizeRuns(runs=(*runs, self.record(self.own)))
        around = (self.record(self.own // 2), self.record(self.own))
        recordings = [run.recording for run in around]
        return SizeRuns(runs=around, samples_vary=same_structure(recordings) and needs_third_run(recordings))


def samples_vary(batches: Mapping[int, Any]) -> bool:
    """Whether a dimension of the batches' tensors follows no line: some samples are larger than others.

    Of two batches a line says nothing: there a dimension must be the same for both, or a multiple of the micro-batch.
    Tensors that are one for each sample are left out: what they make differs in number.
    """
    sizes = list(batches)
    shapes = [[tuple(each.shape) for each in tensors_in(batch)] for batch in batches.values()]
    if len({len(each) for each in shapes}) > 1:
        return False
    return any(
        not _follows(found, sizes) for of_tensor in zip(*shapes, strict=True) for found in zip(*of_tensor, strict=False)
    )


def _follows(found: Sequence[int], sizes: Sequence[int]) -> bool:
    rise, run = found[1] - found[0], sizes[1] - sizes[0]
    if len(found) == 2:
        return rise == 0 or found[0] * sizes[1] == found[1] * sizes[0]
    return all((each - found[0]) * run == rise * (size - sizes[0]) for each, size in zip(found, sizes, strict=True))
