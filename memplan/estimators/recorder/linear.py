"""From runs at two or three micro-batch sizes to block sizes at any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.step_trace import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from memplan.estimators.recorder.recording import Recording

ROUNDING = 0.01  # of a block; some sizes are divided and rounded to whole elements


def same_structure(recordings: Sequence[Recording]) -> bool:
    """Whether the runs made and freed the same blocks in the same order, whatever their sizes."""
    first = recordings[0]
    return all(
        each.event_blocks == first.event_blocks
        and each.event_allocates == first.event_allocates
        and each.operators == first.operators
        for each in recordings[1:]
    )


def needs_third_run(recordings: Sequence[Recording]) -> bool:
    """Whether a line through two runs starts below zero for a block, by more than rounding: its size grows faster."""
    constants = _terms(recordings[:2])[0]
    return bool((constants < -ROUNDING * np.array(recordings[0].block_bytes)).any())


def generalised(recordings: Sequence[Recording]) -> Timeline:
    """Fit each block's bytes through the runs: a line through two, a parabola through three.

    Args:
        recordings: runs of one structure at different micro-batch sizes; a single one is taken as it is.
    """
    first = recordings[0]
    return Timeline(
        event_blocks=np.array(first.event_blocks, dtype=np.int32),
        event_allocates=np.array(first.event_allocates, dtype=np.bool_),
        event_phases=np.array(first.event_phases, dtype=np.int8),
        size_terms=_terms(recordings),
        categories=np.array(first.categories, dtype=np.int8),
        modules=np.array(first.modules, dtype=np.int32),
        operators=np.array(first.operators, dtype=np.int32),
        module_names=tuple(first.module_names),
        operator_names=tuple(first.operator_names),
    )


def _terms(recordings: Sequence[Recording]) -> npt.NDArray[np.float64]:
    sizes = np.array([each.micro_batch_size for each in recordings], dtype=np.float64)
    measured = np.array([each.block_bytes for each in recordings], dtype=np.float64)
    powers = sizes[:, None] ** np.arange(len(recordings))
    terms = np.zeros((3, measured.shape[1]))
    terms[: len(recordings)] = np.linalg.solve(powers, measured)
    return terms
