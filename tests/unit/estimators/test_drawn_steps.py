"""Steps on batches drawn at random hold more than the worst batch alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from memplan.estimators.allocators.allocator_config import AllocatorConfig
from memplan.estimators.drawn_steps import drawn_steps, events_on_batches
from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.repeated_steps import drawn_batches, repeat_last_step
from memplan.estimators.recorder.size_fits import fit_timeline
from memplan.estimators.step_trace import DRAWN_STEPS
from memplan.results import Component, OutcomeKind
from memplan.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.estimators.step_trace import DrawnBatches

CONFIG = AllocatorConfig()
WORST_BYTES = (20 + 20 + 10 + 2) * MIB  # two activations, what is kept, and a segment for the batch


def of_steps(share: float, *, power: int = 1) -> Recording:
    """Two activations of 20 MiB for the worst batch of 1 MiB, and 10 MiB that the next step frees."""
    recording = Recording(micro_batch_size=1)
    kept = None
    for _ in range(2):
        recording.step_starts.append(len(recording.event_blocks))
        batch = made(recording, share * MIB, Component.INPUTS)
        if kept is not None:
            recording.free(kept)
        activations = [made(recording, share**power * 20 * MIB) for _ in range(2)]
        kept = made(recording, 10 * MIB)
        for block in (*activations, batch):
            recording.free(block)
    repeat_last_step(recording)
    return recording


def made(recording: Recording, size_bytes: float, component: Component = Component.ACTIVATIONS) -> int:
    return recording.allocate(int(size_bytes), component, module="", operator="made")


def drawn(sample_sizes: Sequence[float], *, power: int = 1) -> DrawnBatches:
    worst, typical = of_steps(1.0), of_steps(0.5, power=power)
    found = drawn_batches(fit_timeline([worst]), worst, typical, sample_sizes)
    assert found is not None
    return found


@pytest.mark.parametrize("power", [0, 1, 2])
def test_a_block_follows_the_inputs_by_the_power_that_two_batches_show(power: int) -> None:
    found = drawn([1.0], power=power)
    of_first_step = found.share_terms.argmax(axis=0)[:4]
    assert of_first_step.tolist() == [1, power, power, 0]
    assert found.share_terms.max(axis=0).tolist() == found.share_terms.sum(axis=0).tolist()  # one term for each block
    assert found.timeline.block_bytes(1)[:4].tolist() == [MIB, 20 * MIB, 20 * MIB, 10 * MIB]


def test_nothing_is_told_from_a_typical_batch_as_large_as_the_worst() -> None:
    worst = of_steps(1.0)
    assert drawn_batches(fit_timeline([worst]), worst, of_steps(1.0), [1.0, 2.0]) is None
    assert drawn_batches(fit_timeline([worst]), worst, of_steps(0.5), []) is None


def test_batches_of_one_size_hold_what_the_worst_one_holds() -> None:
    found = drawn_steps(drawn([7.0]), 1, CONFIG, limit_bytes=GIB)
    assert (found.steps, found.peak_reserved_bytes) == (DRAWN_STEPS, WORST_BYTES)
    assert found.outcome is OutcomeKind.FITS
    assert found.peak_reserved_expandable_bytes <= WORST_BYTES + 10 * MIB  # pages of 20 MiB


@pytest.mark.parametrize(
    ("limit_mib", "outcome"),
    [(148, "fits"), (147, "allocator retries"), (52, "allocator retries"), (51, "out of memory (device)")],
)
def test_segments_of_small_batches_are_of_no_use_to_larger_ones(limit_mib: int, outcome: str) -> None:
    """One of the draws begins with shares of 0.7, 0.8, 0.9 and 1: each takes two new segments and leaves the old ones.

    They hold 2 * (14 + 16 + 18 + 20) MiB, beside 10 for what is kept and 2 for the batch.
    """
    varying = replace(drawn([1.0]), sample_shares=np.array([0.5, 0.6, 0.7, 0.8, 0.9, 1.0]))
    assert drawn_steps(varying, 1, CONFIG, limit_bytes=limit_mib * MIB).outcome == outcome


def test_large_micro_batches_have_their_largest_sample_nearly_always() -> None:
    samples = drawn([*range(1, 101)])  # whose blocks are those of one sample, whatever the micro-batch
    few, many = (drawn_steps(samples, size, CONFIG, limit_bytes=GIB).peak_reserved_bytes for size in (1, 4096))
    assert many == WORST_BYTES < few


@pytest.mark.parametrize(("of_half", "of_quarter"), [(12, 8), (9, 3.5), (6, 2)])
def test_a_block_lies_on_the_line_through_two_batches_or_on_a_parabola(of_half: int, of_quarter: float) -> None:
    """Of 20 MiB for the worst batch 4, or -2, and the rest in proportion; or a fifth linear, the rest quadratic."""
    worst, typical = of_steps(1.0), of_steps(0.5)
    typical.block_bytes[1] = of_half * MIB
    found = drawn_batches(fit_timeline([worst]), worst, typical, [1.0])
    assert found is not None
    requests = events_on_batches(found, 1, np.array([0.25, 1.0, 1.0])).requests_bytes
    assert requests.tolist()[1] == pytest.approx(of_quarter * MIB, abs=1)


def test_a_batch_is_as_large_as_those_of_its_tensors_that_differ() -> None:
    worst, typical = of_steps(1.0), of_steps(0.5)
    for recording in (worst, typical):
        for block in (3, 7, 11):
            recording.components[block] = Component.INPUTS  # 10 MiB, whatever the batch
    found = drawn_batches(fit_timeline([worst]), worst, typical, [1.0])
    assert found is not None
    assert found.share_terms[:, 0].tolist() == [0, 1, 0]
