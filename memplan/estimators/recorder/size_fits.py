"""From runs at a few micro-batch sizes to block sizes at any size."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.recorder.convolution_blocks import any_workspaces, growing_workspaces
from memplan.estimators.step_trace import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from memplan.estimators.recorder.recording import Recording

ROUNDING = 0.01  # of a block, or of all; some sizes are divided and rounded to whole elements


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
    """Whether two runs leave it open how blocks grow.

    A line that starts below zero grows too slowly. One that starts above it is rare, because nearly all blocks are
    either fixed or proportional to the micro-batch: it is doubted where such beginnings are more than rounding among
    all that grows. What kernels take by rule is left out: a workspace for weights and samples begins above zero.
    """
    sizes = np.array(recordings[0].block_bytes, dtype=np.float64)
    constants, slopes, _ = _terms(recordings[:2])
    grows_faster = bool((constants < -ROUNDING * sizes).any())
    grows = (slopes != 0) & ~np.array(recordings[0].is_by_rule())
    return grows_faster or float(constants[grows & (constants > 0)].sum()) > ROUNDING * float(sizes[grows].sum())


def fits(timeline: Timeline, recording: Recording) -> bool:
    """Whether a timeline of the same structure tells the size of each of a run's blocks, up to rounding."""
    return not bool(_differ(timeline, recording).any())


def nearly_fits(timeline: Timeline, recording: Recording) -> bool:
    """Whether the blocks that a timeline tells otherwise are no more than rounding among all that grow."""
    differs, sizes = _differ(timeline, recording), np.array(recording.block_bytes)
    grows = (timeline.size_terms[1:] != 0).any(axis=0)
    return int(sizes[differs].sum()) <= ROUNDING * int(sizes[differs | grows].sum())


def fit_timeline(recordings: Sequence[Recording]) -> Timeline:
    """Fit each block's bytes through the runs: a line through two, a parabola through three.

    Of four runs the last is a test of the parabola; a block that fails it grows as :func:`envelope_timeline` has it.

    Args:
        recordings: runs of one structure at different micro-batch sizes; a single one is taken as it is.
    """
    fitted = replace(_timeline(recordings[0], _terms(recordings[:3])), workspaces=growing_workspaces(recordings))
    if len(recordings) <= 3:
        return fitted
    fails = _differ(fitted, recordings[3])
    return replace(fitted, size_terms=np.where(fails, envelope_timeline(recordings).size_terms, fitted.size_terms))


def _differ(timeline: Timeline, recording: Recording) -> npt.NDArray[np.bool_]:
    measured = np.array(recording.block_bytes, dtype=np.float64)
    differ: npt.NDArray[np.bool_] = (
        np.abs(timeline.block_bytes(recording.micro_batch_size) - measured) > ROUNDING * measured
    )
    return differ


def proportional_timeline(recordings: Sequence[Recording]) -> Timeline:
    """Let every block that differs between the runs grow with the micro-batch from what it is in the last run.

    Args:
        recordings: runs of one structure, of batches whose samples differ in size.
    """
    return _timeline(recordings[-1], _proportional_terms(recordings, _bytes_per_sample(recordings)[-1]))


def envelope_timeline(recordings: Sequence[Recording]) -> Timeline:
    """Let every block that differs between the runs take as much for each sample as in the run where that is most."""
    return _timeline(recordings[-1], _proportional_terms(recordings, _bytes_per_sample(recordings).max(axis=0)))


def _timeline(recording: Recording, terms: npt.NDArray[np.float64]) -> Timeline:
    return Timeline(
        event_blocks=np.array(recording.event_blocks, dtype=np.int32),
        event_allocates=np.array(recording.event_allocates, dtype=np.bool_),
        event_phases=np.array(recording.event_phases, dtype=np.int8),
        size_terms=terms,
        categories=np.array(recording.categories, dtype=np.int8),
        modules=np.array(recording.modules, dtype=np.int32),
        operators=np.array(recording.operators, dtype=np.int32),
        module_names=tuple(recording.module_names),
        operator_names=tuple(recording.operator_names),
        workspaces=any_workspaces(recording),
    )


def _terms(recordings: Sequence[Recording]) -> npt.NDArray[np.float64]:
    sizes = np.array([each.micro_batch_size for each in recordings], dtype=np.float64)
    measured = _bytes_of_runs(recordings)
    powers = sizes[:, None] ** np.arange(len(recordings))
    terms = np.zeros((3, measured.shape[1]))
    terms[: len(recordings)] = np.linalg.solve(powers, measured)
    return terms


def _proportional_terms(
    recordings: Sequence[Recording], bytes_per_sample: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    measured = _bytes_of_runs(recordings)
    is_fixed = (measured == measured[0]).all(axis=0)
    terms = np.zeros((3, measured.shape[1]))
    terms[0] = np.where(is_fixed, measured[0], 0)
    terms[1] = np.where(is_fixed, 0, bytes_per_sample)
    return terms


def _bytes_of_runs(recordings: Sequence[Recording]) -> npt.NDArray[np.float64]:
    return np.array([each.block_bytes for each in recordings], dtype=np.float64)


def _bytes_per_sample(recordings: Sequence[Recording]) -> npt.NDArray[np.float64]:
    per_sample: npt.NDArray[np.float64] = _bytes_of_runs(recordings) / [[each.micro_batch_size] for each in recordings]
    return per_sample
