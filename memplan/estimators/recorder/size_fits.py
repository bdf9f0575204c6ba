"""Block sizes at any micro-batch size, fitted to runs at a few."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.recorder.kernel_call_blocks import (
    growing_ruled_blocks,
    growing_workspaces,
    proportional_workspaces,
    timed_copies,
    workspaces_as_traced,
)
from memplan.estimators.step_trace import Timeline
from memplan.estimators.temporaries.timed_copies import TimedCopies

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from memplan.estimators.recorder.recording import Recording

_ROUNDING = 0.01  # relative; some sizes are divided and rounded to whole elements


def same_structure(recordings: Sequence[Recording]) -> bool:
    """Whether the runs allocated and freed the same blocks in the same order, at any sizes."""
    first = recordings[0]
    return all(
        each.event_blocks == first.event_blocks
        and each.event_allocates == first.event_allocates
        and each.operators == first.operators
        for each in recordings[1:]
    )


def needs_third_run(recordings: Sequence[Recording]) -> bool:
    """Whether two runs do not determine how blocks grow.

    Nearly all blocks are constant or proportional to the micro-batch. A line with a negative intercept underestimates
    larger sizes. One with a positive intercept is doubted where the intercepts are more than ``_ROUNDING`` of all that
    grows; temporaries of kernels are left out, because a workspace for weights and samples has a true intercept.
    Temporaries by rules and workspaces of convolutions follow no line, but are known at every size.
    """
    sizes = np.array(recordings[0].block_bytes, dtype=np.float64)
    intercepts, slopes, _ = _terms(recordings[:2])
    for known in (growing_ruled_blocks(recordings[:2]).blocks, growing_workspaces(recordings[:2]).blocks):
        intercepts[known] = slopes[known] = 0
    underestimates = bool((intercepts < -_ROUNDING * sizes).any())
    grows = (slopes != 0) & ~np.array(recordings[0].is_by_rule())
    return underestimates or float(intercepts[grows & (intercepts > 0)].sum()) > _ROUNDING * float(sizes[grows].sum())


def fits(timeline: Timeline, recording: Recording) -> bool:
    """Whether a timeline gives the size of every block of a run, up to ``_ROUNDING``, or the convolution it is for."""
    return not bool(_misses(timeline, recording).any())


def nearly_fits(timeline: Timeline, recording: Recording) -> bool:
    """Whether the blocks that a timeline misses hold at most ``_ROUNDING`` of the bytes of all growing blocks."""
    misses, sizes = _misses(timeline, recording), np.array(recording.block_bytes)
    grows = (timeline.size_terms[1:] != 0).any(axis=0)
    return int(sizes[misses].sum()) <= _ROUNDING * int(sizes[misses | grows].sum())


def fit_timeline(recordings: Sequence[Recording]) -> Timeline:
    """Fit each block's bytes: a line through two runs, a parabola through three.

    A fourth run tests the parabola; blocks that fail it grow from their largest size per sample.

    Args:
        recordings: runs of one structure at different micro-batch sizes; a single run gives constants.
    """
    fitted = replace(
        _timeline(recordings[0], _terms(recordings[:3])),
        workspaces=growing_workspaces(recordings),
        ruled=growing_ruled_blocks(recordings),
    )
    if len(recordings) <= 3:
        return fitted
    misses = _misses(fitted, recordings[3])
    return replace(fitted, size_terms=np.where(misses, _proportional_terms(recordings, recordings), fitted.size_terms))


def _misses(timeline: Timeline, recording: Recording) -> npt.NDArray[np.bool_]:
    size, measured = recording.micro_batch_size, np.array(recording.block_bytes, dtype=np.float64)
    found = replace(timeline, timed_copies=TimedCopies()).block_bytes(size)
    misses: npt.NDArray[np.bool_] = np.abs(found - measured) > _ROUNDING * measured
    blocks, calls = timeline.workspaces.blocks, timeline.workspaces.calls_at(size)
    for block, number in zip(blocks.tolist(), timeline.workspaces.numbers.tolist(), strict=True):
        misses[block] = recording.kernel_calls[block] != calls[number]
    return misses


def proportional_timeline(recordings: Sequence[Recording]) -> Timeline:
    """Scale every block that differs between the runs with the micro-batch, from its size in the last run.

    Args:
        recordings: runs of one structure on batches whose samples differ in size.
    """
    scaled = _timeline(recordings[-1], _proportional_terms(recordings, recordings[-1:]))
    return replace(scaled, workspaces=proportional_workspaces(recordings[-1]))


def envelope_timeline(recordings: Sequence[Recording]) -> Timeline:
    """Scale every block that differs between the runs with the micro-batch, from its largest size per sample."""
    return _timeline(recordings[-1], _proportional_terms(recordings, recordings))


def _timeline(recording: Recording, terms: npt.NDArray[np.float64]) -> Timeline:
    return Timeline(
        event_blocks=np.array(recording.event_blocks, dtype=np.int32),
        event_allocates=np.array(recording.event_allocates, dtype=np.bool_),
        event_phases=np.array(recording.event_phases, dtype=np.int8),
        step_starts=np.array(recording.step_starts, dtype=np.int32),
        size_terms=terms,
        components=np.array(recording.components, dtype=np.int8),
        modules=np.array(recording.modules, dtype=np.int32),
        operators=np.array(recording.operators, dtype=np.int32),
        side_streams={block: stream for block, stream in enumerate(recording.streams) if stream},
        graph_streams=recording.graph_streams,
        module_names=tuple(recording.module_names),
        operator_names=tuple(recording.operator_names),
        workspaces=workspaces_as_traced(recording),
        cache_returns=np.array(recording.all_returns, dtype=np.int32),
        timed_copies=timed_copies(recording),
    )


def _terms(recordings: Sequence[Recording]) -> npt.NDArray[np.float64]:
    sizes = np.array([each.micro_batch_size for each in recordings], dtype=np.float64)
    measured = _bytes_of_runs(recordings)
    powers = sizes[:, None] ** np.arange(len(recordings))
    terms = np.zeros((3, measured.shape[1]))
    terms[: len(recordings)] = np.linalg.solve(powers, measured)
    return terms


def _proportional_terms(recordings: Sequence[Recording], scaled: Sequence[Recording]) -> npt.NDArray[np.float64]:
    """Scale every block that differs between runs with the micro-batch, from its largest size per sample in some."""
    measured, sizes = _bytes_of_runs(recordings), [[each.micro_batch_size] for each in scaled]
    is_fixed = (measured == measured[0]).all(axis=0)
    terms = np.zeros((3, measured.shape[1]))
    terms[0] = np.where(is_fixed, measured[0], 0)
    terms[1] = np.where(is_fixed, 0, (_bytes_of_runs(scaled) / sizes).max(axis=0))
    return terms


def _bytes_of_runs(recordings: Sequence[Recording]) -> npt.NDArray[np.float64]:
    return np.array([each.block_bytes for each in recordings], dtype=np.float64)
