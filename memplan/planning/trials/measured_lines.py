"""Peaks over the micro-batch where nothing was traced: straight lines through what trials measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan.results import Trial

_FIXED_PARTS = ("context", "parameters", "buffers", "gradients", "optimizer_state", "workspaces")


def measured_line(first: Trial, trials: Sequence[Trial]) -> Callable[[int], float]:
    """Return the device peak in bytes that is expected at a micro-batch.

    The slope is that of the first precision tried, where two sizes of it were read; else what does not follow the
    batch is taken from the one reading there is.

    Args:
        first: the first trial of a precision.
        trials: live runs in order, this one among them.
    """
    measured, size_now = first.outcome.measurement, first.recipe.micro_batch_size
    if measured is None:
        return float
    peak_bytes, slope = measured.peak_device_bytes, _slope_of(trials)
    if slope is None:
        fixed_bytes = sum(measured.breakdown[name] for name in _FIXED_PARTS)
        slope = max(peak_bytes - fixed_bytes, 1) / size_now
    return lambda size: peak_bytes + slope * (size - size_now)


def _slope_of(trials: Sequence[Trial]) -> float | None:
    """Return the bytes a sample takes in the first precision tried, between the largest and the smallest size read."""
    precision = trials[0].recipe.precision
    read = {
        each.recipe.micro_batch_size: measured.peak_device_bytes
        for each in trials
        if each.recipe.precision is precision and (measured := each.outcome.measurement) is not None
    }
    smallest, largest = min(read, default=0), max(read, default=0)
    if smallest == largest or read[largest] <= read[smallest]:
        return None
    return (read[largest] - read[smallest]) / (largest - smallest)
