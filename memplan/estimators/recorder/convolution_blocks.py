"""cuDNN workspaces at any micro-batch size, from the convolutions recorded at a few."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.convolutions import Convolution, GrowingConvolution, Workspaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.estimators.recorder.recording import Recording


def any_workspaces(recording: Recording) -> Workspaces | None:
    """Return ``Workspaces`` without convolutions if the run has convolution workspaces, else None."""
    return Workspaces() if any(each is not None for each in recording.convolutions) else None


def growing_workspaces(recordings: Sequence[Recording]) -> Workspaces | None:
    """Return the convolution workspaces of the runs, for convolutions whose sample count is linear in the micro-batch.

    Args:
        recordings: runs with the same blocks at different micro-batch sizes; a single run gives constants.
    """
    sizes = [each.micro_batch_size for each in recordings]
    numbers: dict[GrowingConvolution, int] = {}
    found: list[tuple[int, int]] = []
    for block, calls in enumerate(zip(*(each.convolutions for each in recordings), strict=True)):
        growing = _growing([each for each in calls if each is not None], sizes)
        if growing is not None:
            found.append((block, numbers.setdefault(growing, len(numbers))))
    if not found:
        return any_workspaces(recordings[0])
    blocks, of_blocks = np.array(found, dtype=np.int32).T
    return Workspaces(blocks=blocks, numbers=of_blocks, convolutions=tuple(numbers))


def _growing(calls: Sequence[Convolution], sizes: Sequence[int]) -> GrowingConvolution | None:
    """Return one block's convolution as a function of the micro-batch, if all runs lie on one line."""
    if len(calls) != len(sizes):
        return None
    first = calls[0]
    per_item = 0 if len(calls) == 1 else (calls[1].samples - first.samples) // (sizes[1] - sizes[0])
    growing = GrowingConvolution(
        convolution=first.with_samples(0),
        samples_at_zero=first.samples - per_item * sizes[0],
        samples_per_item=per_item,
    )
    is_linear = all(growing.at(size) == each for size, each in zip(sizes, calls, strict=True))
    return growing if is_linear else None
