"""What the first live trial teaches the later estimates."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from memplan.devices.cards import DeviceKind, DeviceSpec, find_card
from memplan.devices.measured_contexts import calibrated
from memplan.errors import WorkloadError
from memplan.estimators import TracedSetting
from memplan.estimators.step_trace import StepTrace, Timeline
from memplan.planning import traces as traces_module
from memplan.planning.traces import Traces
from memplan.progress import Stage
from memplan.recipe import Recipe
from memplan.report.facts import compare
from memplan.results import Component, ContextBasis
from memplan.units import MIB
from tests.making import CPU, SOURCE, command, ignore, measurement, step_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.progress import Observer

CARD = replace(find_card("rtx-3090"), live_index=0, driver_version="580.65.06", name="NVIDIA GeForce RTX 3090")
RECIPE = Recipe(micro_batch_size=4)


def trace_of_one_block(recipe: Recipe, device: DeviceSpec) -> StepTrace:
    """One block of 1 MiB a sample."""
    timeline = Timeline(
        event_blocks=np.array([0], dtype=np.int32),
        event_allocates=np.array([True]),
        event_phases=np.array([1], dtype=np.int8),
        step_starts=np.array([0], dtype=np.int32),
        size_terms=np.array([[0.0], [float(MIB)], [0.0]]),
        components=np.array([Component.ACTIVATIONS], dtype=np.int8),
        modules=np.array([0], dtype=np.int32),
        operators=np.array([0], dtype=np.int32),
        module_names=("",),
        operator_names=("aten.relu",),
    )
    return step_trace(
        timeline,
        recipe=recipe,
        device_kind=device.kind,
        compute_capability=device.compute_capability,
        host_context_bytes=90 * MIB if device.kind is DeviceKind.CPU else None,
    )


@pytest.fixture
def traces_of(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Make the traces of a device; each setting is traced by the function given, and what fails beside is left out."""
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path))

    def make(device: DeviceSpec, observer: Observer = ignore, *, trace=trace_of_one_block) -> Traces:
        def trace_all(
            source: object, settings: Sequence[TracedSetting], device: DeviceSpec, **_: object
        ) -> dict[TracedSetting, StepTrace]:
            first, *others = settings
            found = {first: trace(first.recipe, device)}
            for each in others:
                with suppress(WorkloadError):
                    found[each] = trace(each.recipe, device)
            return found

        monkeypatch.setattr(traces_module, "trace_steps", trace_all)
        return Traces(SOURCE, device, observer)

    return make


def test_where_samples_vary_each_micro_batch_is_traced_by_itself(traces_of) -> None:
    asked: list[int] = []

    def trace_of_varying_samples(recipe: Recipe, device: DeviceSpec) -> StepTrace:
        asked.append(recipe.micro_batch_size)
        one = trace_of_one_block(recipe, device)
        return replace(one, envelope=one.timelines[0], traced_batch_sizes=(2, 3, recipe.micro_batch_size))

    traces = traces_of(CARD, trace=trace_of_varying_samples)
    for size in (4, 8, 8, 3, 4):
        traces.estimate(RECIPE.with_micro_batch_size(size))
    assert asked == [4, 8]


def test_sizes_that_one_trace_does_not_predict_are_traced_at_the_same_time(traces_of) -> None:
    stages: list[object] = []

    def trace_of_varying_samples(recipe: Recipe, device: DeviceSpec) -> StepTrace:
        one = trace_of_one_block(recipe, device)
        return replace(one, envelope=one.timelines[0], traced_batch_sizes=(2, 3, recipe.micro_batch_size))

    traces = traces_of(CARD, stages.append, trace=trace_of_varying_samples)
    recipes = [RECIPE.with_micro_batch_size(size) for size in (4, 8, 16, 3)]
    traces.make_ahead(TracedSetting(recipe=each) for each in recipes)
    for recipe in recipes:
        traces.estimate(recipe)
    assert stages == [Stage(text="estimating fp32, 4 x 1"), Stage(text="estimating fp32, 8 x 1 and 1 more")]


def test_a_search_interpolates_between_traced_micro_batches_and_traces_what_is_run(traces_of) -> None:
    asked: list[int] = []

    def trace_of_more_blocks_for_more_samples(recipe: Recipe, device: DeviceSpec) -> StepTrace:
        asked.append(recipe.micro_batch_size)
        one = trace_of_one_block(recipe, device)
        sizes = (20, recipe.micro_batch_size)
        return replace(one, timelines=one.timelines * 2, traced_batch_sizes=sizes)

    traces = traces_of(CARD, trace=trace_of_more_blocks_for_more_samples)
    context_bytes = traces.estimate(RECIPE.with_micro_batch_size(40)).breakdown.context
    expected = [traces.expected_process_bytes(RECIPE.with_micro_batch_size(size)) for size in (30, 60)]
    assert expected == [context_bytes + 30 * MIB, context_bytes + 60 * MIB]
    assert asked == [40]
    traces.estimate(RECIPE.with_micro_batch_size(60))
    assert traces.expected_process_bytes(RECIPE.with_micro_batch_size(50)) == context_bytes + 50 * MIB
    assert asked == [40, 60]


def test_what_is_made_ahead_is_traced_at_once_and_what_fails_beside_only_when_it_is_asked_for(traces_of) -> None:
    stages: list[object] = []
    asked: list[str] = []

    def trace_without_half_types(recipe: Recipe, device: DeviceSpec) -> StepTrace:
        asked.append(recipe.precision)
        if recipe.precision == "fp16":
            raise WorkloadError("the loss is not finite")
        return trace_of_one_block(recipe, device)

    traces = traces_of(CARD, stages.append, trace=trace_without_half_types)
    recipes = [replace(RECIPE, precision=each) for each in ("fp32", "bf16", "fp16")]
    traces.make_ahead(TracedSetting(recipe=each) for each in recipes)
    assert [each.text for each in stages if isinstance(each, Stage)] == ["estimating fp32, 4 x 1 and 2 more"]
    for recipe in recipes[:2]:
        assert traces.estimate(recipe).breakdown.activations == 4 * MIB
    assert asked == ["fp32", "bf16", "fp16"]
    with pytest.raises(WorkloadError, match="not finite"):
        traces.estimate(recipes[2])
    traces.make_ahead(TracedSetting(recipe=each) for each in recipes)
    assert asked == ["fp32", "bf16", "fp16", "fp16"]


def test_what_fails_first_ahead_fails_where_it_is_asked_for_and_is_not_traced_again(traces_of) -> None:
    asked: list[Recipe] = []

    def trace_nothing(recipe: Recipe, device: DeviceSpec) -> StepTrace:
        asked.append(recipe)
        raise WorkloadError("model() raised")

    traces = traces_of(CARD, trace=trace_nothing)
    traces.make_ahead([TracedSetting(recipe=RECIPE), TracedSetting(recipe=RECIPE, fused_optimizer=True)])
    with pytest.raises(WorkloadError, match="raised"):
        traces.estimate(RECIPE)
    assert asked == [RECIPE]


def test_where_a_micro_batch_cannot_be_traced_another_tells_of_it(traces_of) -> None:
    def trace_of_few_samples(recipe: Recipe, device: DeviceSpec) -> StepTrace:
        if recipe.micro_batch_size > 4:
            raise WorkloadError("the data set has four samples")
        one = trace_of_one_block(recipe, device)
        return replace(one, envelope=one.timelines[0], traced_batch_sizes=(2, 3, 4))

    traces = traces_of(CARD, trace=trace_of_few_samples)
    traces.estimate(RECIPE)
    assert traces.estimate(RECIPE.with_micro_batch_size(8)).breakdown.activations == 8 * MIB


def test_where_sizes_follow_from_the_micro_batch_one_trace_tells_of_all(traces_of) -> None:
    stages: list[object] = []
    traces = traces_of(CARD, stages.append)
    found = [traces.estimate(RECIPE.with_micro_batch_size(size)) for size in (4, 512)]
    assert [each.breakdown.activations for each in found] == [4 * MIB, 512 * MIB]
    assert stages == [Stage(text=f"estimating {RECIPE}")]


@pytest.mark.parametrize(
    ("device", "before"), [(CARD, ContextBasis.CATALOGUE), (CPU, ContextBasis.TRACE)], ids=["card", "cpu"]
)
def test_the_context_of_the_first_trial_is_used_from_then_on_and_shows_no_error(traces_of, device, before) -> None:
    traces = traces_of(device)
    first = traces.estimate(RECIPE)
    traces.learn(RECIPE, measurement(300))
    later = traces.estimate(RECIPE)

    assert (first.context_basis, later.context_basis) == (before, ContextBasis.FIRST_TRIAL)
    assert later.breakdown.context == 100 * MIB
    rows = [{row.name: row for row in compare(each, measurement(300))}["context"] for each in (first, later)]
    assert rows[0].relative_error is not None
    assert (rows[1].relative_error, rows[1].no_error_because) == (None, "measured by the first trial")


def test_a_later_run_starts_from_what_an_earlier_one_measured_on_the_card(traces_of) -> None:
    traces_of(CARD).learn(RECIPE, measurement(300))
    found = traces_of(calibrated(CARD)).estimate(RECIPE)
    assert (found.breakdown.context, found.context_basis) == (100 * MIB, ContextBasis.CALIBRATED)
    assert "was measured on such a card here on 20" in found.notes[-1]


def test_a_context_that_others_may_share_is_not_kept_for_later_runs(traces_of) -> None:
    traces = traces_of(CARD)
    traces.learn(RECIPE, replace(measurement(300), has_own_context=False))
    assert traces.estimate(RECIPE).breakdown.context == 100 * MIB
    assert calibrated(CARD) == CARD


def test_the_process_peak_on_a_card_has_a_range_until_its_context_is_measured(traces_of) -> None:
    traces = traces_of(CARD)
    found = traces.estimate(RECIPE)
    beside = found.peak_process_bytes - found.breakdown.context
    low, high = found.peak_process_range_bytes
    assert (round((low - beside) / MIB, 1), round((high - beside) / MIB, 1)) == (203.4, 339.1)
    traces.learn(RECIPE, measurement(300))
    assert traces.estimate(RECIPE).peak_process_range_bytes is None


def test_the_optimizer_of_a_command_is_the_one_that_its_first_trial_saw() -> None:
    traces = Traces(command("t {micro_batch_size}"), CPU, ignore)
    assert traces.optimizer_name(RECIPE) == "the optimizer"
    traces.learn(RECIPE, replace(measurement(300), optimizer_name="AdamW", has_own_context=False))
    assert traces.optimizer_name(RECIPE) == "AdamW"


def trace_with_a_pinned_hole(recipe: Recipe, device: DeviceSpec) -> StepTrace:
    """Four MiB come, 64 KiB come, the four MiB go, and five MiB come that do not fit where they were."""
    one = trace_of_one_block(recipe, device)
    zeros = np.zeros(3, dtype=np.int32)
    timeline = replace(
        one.timelines[0],
        event_blocks=np.array([0, 1, 0, 2], dtype=np.int32),
        event_allocates=np.array([True, True, False, True]),
        event_phases=np.ones(4, dtype=np.int8),
        size_terms=np.array([[4.0 * MIB, MIB / 16, 5.0 * MIB], [0.0] * 3, [0.0] * 3]),
        components=np.full(3, Component.ACTIVATIONS, dtype=np.int8),
        modules=zeros,
        operators=zeros,
    )
    return replace(one, timelines=(timeline,))


@pytest.mark.parametrize(("threshold_mib", "held_mib"), [(1, 5), (1024, 9)], ids=["mapped alone", "kept in the heap"])
def test_on_the_cpu_the_heap_is_replayed_as_the_environment_sets_it(
    traces_of, monkeypatch: pytest.MonkeyPatch, threshold_mib: int, held_mib: int
) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(threshold_mib * MIB))
    held_bytes = traces_of(CPU, trace=trace_with_a_pinned_hole).estimate(RECIPE).peak_reserved_bytes
    assert held_bytes // MIB == held_mib
