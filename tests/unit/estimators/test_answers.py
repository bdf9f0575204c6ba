"""Answers from traces made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memplan.devices.cards import DeviceKind, DeviceSpec
from memplan.errors import UsageError
from memplan.estimators.allocators.allocator_config import AllocatorConfig
from memplan.estimators.allocators.process_allocators import ProcessAllocators
from memplan.estimators.answers import estimate, largest_micro_batch, process_peak
from memplan.estimators.figures import STEP_BEYOND_CONTEXT_BYTES
from memplan.estimators.step_trace import PHASES, StepTrace, Timeline
from memplan.estimators.temporaries.convolutions import SizedWorkspaces
from memplan.results import Component, ContextBasis, OutcomeKind, PeakShare, Phase
from memplan.units import GIB, MIB
from tests.making import context, step_trace

CPU = DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=8 * GIB)


def timeline(activation_mib: float, per_sample_mib: float) -> Timeline:
    """4 MiB of weights; an activation that comes and goes in each of two forward passes."""
    return Timeline(
        event_blocks=np.array([0, 1, 1, 2, 2], dtype=np.int32),
        event_allocates=np.array([True, True, False, True, False]),
        event_phases=np.array([PHASES.index(Phase.SETUP), *[PHASES.index(Phase.FORWARD)] * 4], dtype=np.int8),
        step_starts=np.array([1, 3], dtype=np.int32),
        size_terms=np.array([[4, activation_mib, activation_mib], [0, per_sample_mib, per_sample_mib], [0, 0, 0]])
        * float(MIB),
        components=np.array([Component.PARAMETERS, Component.ACTIVATIONS, Component.ACTIVATIONS], dtype=np.int8),
        modules=np.array([0, 1, 1], dtype=np.int32),
        operators=np.array([0, 1, 1], dtype=np.int32),
        module_names=("", "layer"),
        operator_names=("weight", "aten.mm"),
    )


def trace(*timelines: Timeline, sizes: tuple[int, ...] = (2, 3)) -> StepTrace:
    return step_trace(*timelines, device_kind=DeviceKind.CPU, traced_batch_sizes=sizes, host_context_bytes=100 * MIB)


def test_the_peak_and_what_holds_it_are_read_off_the_timeline() -> None:
    found = estimate(trace(timeline(0, 1)), micro_batch_size=10, device=CPU)
    assert found.peak_allocated_bytes == 14 * MIB
    assert found.peak_phase is Phase.FORWARD
    assert (found.breakdown.parameters, found.breakdown.activations) == (4 * MIB, 10 * MIB)
    assert found.top_modules[0] == PeakShare(name="layer", held_bytes=10 * MIB)
    assert found.top_operators[1] == PeakShare(name="weight", held_bytes=4 * MIB)


def test_the_cpus_process_peak_adds_context_and_what_a_step_takes_outside_the_heap() -> None:
    found = estimate(trace(timeline(0, 1)), micro_batch_size=10, device=CPU)
    assert found.breakdown.context == 100 * MIB
    assert found.peak_process_bytes >= 114 * MIB + STEP_BEYOND_CONTEXT_BYTES
    assert found.uncounted == ()


def test_where_the_number_of_allocations_depends_on_the_size_figures_lie_on_a_line_through_two_runs() -> None:
    found = estimate(trace(timeline(2, 0), timeline(3, 0)), micro_batch_size=10, device=CPU)
    assert found.peak_allocated_bytes == 14 * MIB
    assert sum(found.breakdown.values()) == found.peak_process_bytes


def test_a_size_that_was_traced_is_answered_from_its_own_run() -> None:
    found = estimate(
        trace(timeline(2, 0), timeline(9, 0), timeline(3, 0), sizes=(2, 3, 5)), micro_batch_size=3, device=CPU
    )
    assert found.peak_allocated_bytes == 13 * MIB


def test_a_size_between_traced_ones_lies_between_its_neighbours() -> None:
    runs = trace(timeline(2, 0), timeline(4, 0), timeline(8, 0), sizes=(2, 4, 8))
    assert estimate(runs, micro_batch_size=6, device=CPU).peak_allocated_bytes == 10 * MIB


def test_the_most_that_samples_of_other_sizes_could_take_is_said_where_it_is_more() -> None:
    alike = trace(timeline(0, 1))
    said = estimate(replace(alike, envelope=timeline(0, 2)), micro_batch_size=10, device=CPU).notes
    assert said[-1].endswith("the allocated peak would be 24.00 MiB")
    assert estimate(replace(alike, envelope=timeline(0, 1)), micro_batch_size=10, device=CPU).notes == ()


def searching(first_mib: float) -> Timeline:
    """The second block is a workspace, for which the search takes some MiB a sample."""
    searches = SizedWorkspaces(
        blocks=np.array([1], dtype=np.int32),
        numbers=np.array([0]),
        sizes=(1, 256),
        bytes_at_sizes=np.array([[first_mib, 256 * first_mib]]) * MIB,
    )
    return replace(timeline(0, 1), searches=searches)


def test_a_search_for_algorithms_has_a_peak_of_its_own() -> None:
    found = estimate(trace(searching(7)), micro_batch_size=10, device=CPU)
    assert found.peak_search_bytes == (20 + 70) * MIB  # the segment of the weights, and one for the search
    assert found.peak_allocated_bytes == (4 + 10) * MIB
    assert estimate(trace(timeline(0, 1)), micro_batch_size=10, device=CPU).peak_search_bytes is None


@pytest.mark.parametrize(("returns", "reserved_mib"), [([], 20 + 70 + 80), ([1, 3], 20 + 80)])
def test_what_a_search_held_is_returned_before_the_next(returns: list[int], reserved_mib: int) -> None:
    searches = SizedWorkspaces(
        blocks=np.array([1, 2], dtype=np.int32),
        numbers=np.array([0, 1]),
        sizes=(1,),
        bytes_at_sizes=np.array([[7.0], [8.0]]) * MIB,
    )
    both = replace(timeline(0, 1), searches=searches, cache_returns=np.array(returns, dtype=np.int32))
    assert estimate(trace(both), micro_batch_size=10, device=CPU).peak_search_bytes == reserved_mib * MIB


def test_what_a_search_had_returned_is_not_held_beside_later_blocks() -> None:
    """Weights in a segment of 20 MiB, and activations of 20 and 40 MiB, one after the other."""
    plain = replace(timeline(0, 0), size_terms=np.array([[4, 20, 40], [0, 0, 0], [0, 0, 0]]) * float(MIB))
    card = DeviceSpec(name="card", kind=DeviceKind.CUDA, total_bytes=8 * GIB)
    for returns, reserved_mib in (([], 80), ([3], 60)):
        returning = replace(plain, cache_returns=np.array(returns, dtype=np.int32))
        steps = replace(trace(returning), device_kind=DeviceKind.CUDA)
        assert estimate(steps, micro_batch_size=1, device=card).peak_reserved_bytes == reserved_mib * MIB
        assert process_peak(steps, card)(1) == (reserved_mib + 100) * MIB


def test_the_range_of_the_process_peak_holds_what_samples_of_other_sizes_could_take() -> None:
    alike = trace(timeline(0, 1))
    found = estimate(replace(alike, envelope=timeline(0, 2)), micro_batch_size=10, device=CPU)
    at_most = estimate(trace(timeline(0, 2)), micro_batch_size=10, device=CPU).peak_process_bytes
    assert found.peak_process_range_bytes == (found.peak_process_bytes, at_most)
    assert found.samples_vary
    assert estimate(alike, micro_batch_size=10, device=CPU).peak_process_range_bytes is None


def test_a_context_that_is_not_measured_and_samples_that_vary_widen_one_range() -> None:
    alike = replace(trace(timeline(0, 1)), device_kind=DeviceKind.CUDA)
    card = DeviceSpec(
        name="card",
        kind=DeviceKind.CUDA,
        total_bytes=8 * GIB,
        context=context(300, ContextBasis.CATALOGUE),
    )
    least, most = estimate(alike, micro_batch_size=10, device=card).peak_process_range_bytes
    found = estimate(replace(alike, envelope=timeline(0, 4)), micro_batch_size=10, device=card)
    assert found.peak_process_range_bytes[0] == least
    assert found.peak_process_range_bytes[1] > most


@pytest.mark.parametrize("room_mib", [1, 17, 500])
def test_the_largest_size_is_solved_to_the_sample(room_mib: int) -> None:
    peak_at = process_peak(trace(timeline(0, 1)), CPU)
    assert largest_micro_batch(peak_at, limit_bytes=peak_at(room_mib), cap=10**6) == room_mib


@pytest.mark.parametrize(
    ("misfits", "expected"),
    [
        (set(), 20),
        ({21}, 20),
        ({18}, 17),
        ({18, 19}, 17),
        ({18, 5}, 4),  # 5 is one of the 16 below 17
        ({3}, 20),  # no longer near 20
        ({4, 3}, 2),  # 3 lies below the 16, but is what is left once 4 is known not to fit
    ],
)
@pytest.mark.parametrize("cap", [20, 64])
def test_the_next_smaller_sizes_fit_as_well(misfits: set[int], expected: int, cap: int) -> None:
    assert largest_micro_batch(lambda size: 30 if size in misfits else size, limit_bytes=20, cap=cap) == expected


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="micro_batch_size=0"):
        estimate(trace(timeline(0, 1)), micro_batch_size=0, device=CPU)


def test_the_process_peak_alone_is_that_of_the_estimate() -> None:
    card = DeviceSpec(name="card", kind=DeviceKind.CUDA, total_bytes=8 * GIB, context=context(1))
    made = replace(trace(timeline(3, 0.5)), device_kind=DeviceKind.CUDA)
    peak_at = process_peak(made, card)
    for size in range(1, 40):
        assert peak_at(size) == estimate(made, micro_batch_size=size, device=card).peak_process_bytes


@pytest.mark.parametrize(
    ("total_mib", "outcome"),
    [
        (191, OutcomeKind.FITS),  # 20 for the weights, 30 and 40 for the activations, 101 of context
        (190, OutcomeKind.ALLOCATOR_RETRIES),  # the 40 are had once the 30 are returned
        (161, OutcomeKind.ALLOCATOR_RETRIES),
        (160, OutcomeKind.DEVICE_OUT_OF_MEMORY),
    ],
)
def test_what_exceeds_a_card_is_replayed_under_its_limit(total_mib: int, outcome: OutcomeKind) -> None:
    card = DeviceSpec(name="card", kind=DeviceKind.CUDA, total_bytes=total_mib * MIB, context=context(101))
    two_sizes = replace(timeline(0, 0), size_terms=np.array([[4, 30, 40], [0, 0, 0], [0, 0, 0]]) * float(MIB))
    made = replace(trace(two_sizes), device_kind=DeviceKind.CUDA)
    assert estimate(made, micro_batch_size=1, device=card).outcome is outcome


@pytest.mark.parametrize(("activation", "context_mib"), [(Component.WORKSPACES, 100), (Component.ACTIVATIONS, 70)])
def test_a_step_without_a_product_has_less_of_a_context(activation: Component, context_mib: int) -> None:
    size = replace(context(100, ContextBasis.CATALOGUE), of_products_bytes=30 * MIB)
    card = DeviceSpec(name="card", kind=DeviceKind.CUDA, total_bytes=400 * MIB, context=size)
    components = np.array([Component.PARAMETERS, activation, activation], dtype=np.int8)
    made = replace(trace(replace(timeline(0, 1), components=components)), device_kind=DeviceKind.CUDA)
    assert estimate(made, micro_batch_size=8, device=card).breakdown.context == context_mib * MIB


def test_a_share_of_the_card_that_pytorch_may_take_limits_it_as_well() -> None:
    card = DeviceSpec(name="card", kind=DeviceKind.CUDA, total_bytes=400 * MIB, context=context(100))
    made = replace(trace(timeline(0, 1)), device_kind=DeviceKind.CUDA)
    for share, outcome in ((0.2, OutcomeKind.FITS), (0.1, OutcomeKind.DEVICE_OUT_OF_MEMORY)):  # 60 of 80 or 40 MiB
        allocators = ProcessAllocators(cuda=AllocatorConfig(per_process_memory_fraction=share))
        assert estimate(made, micro_batch_size=40, device=card, allocators=allocators).outcome is outcome


@pytest.mark.parametrize(
    ("total_mib", "outcome"),
    [
        (168, OutcomeKind.FITS),  # halfway between segments of 20 + 32 and of 20 + 64 MiB
        (167, OutcomeKind.ALLOCATOR_RETRIES),
        (152, OutcomeKind.ALLOCATOR_RETRIES),
        (151, OutcomeKind.DEVICE_OUT_OF_MEMORY),  # halfway between blocks of 4 + 32 and of 4 + 64 MiB
    ],
)
def test_between_two_traced_sizes_the_blocks_decide(total_mib: int, outcome: OutcomeKind) -> None:
    card = DeviceSpec(name="card", kind=DeviceKind.CUDA, total_bytes=total_mib * MIB, context=context(100))
    made = replace(trace(timeline(0, 4), timeline(0, 4), sizes=(8, 16)), device_kind=DeviceKind.CUDA)
    assert estimate(made, micro_batch_size=12, device=card).outcome is outcome


def test_what_exceeds_the_budget_of_a_cpu_runs_out_of_memory() -> None:
    fits, not_at_all = (replace(CPU, total_bytes=size * MIB) for size in (800, 80))
    made = trace(timeline(0, 1))
    assert estimate(made, micro_batch_size=10, device=fits).outcome is OutcomeKind.FITS
    assert estimate(made, micro_batch_size=10, device=not_at_all).outcome is OutcomeKind.HOST_OUT_OF_MEMORY
