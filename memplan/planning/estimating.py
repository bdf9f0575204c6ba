"""What `memplan estimate` and `memplan.estimate` ask: the peaks of one subject's step, for one or several recipes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind
from memplan.errors import UsageError
from memplan.estimators import largest_micro_batch, trace_template
from memplan.planning.options import parse_budget
from memplan.planning.question import device_for
from memplan.planning.savings import possible_savings
from memplan.planning.subject import subject_of_config
from memplan.planning.traces import Traces
from memplan.plans import PlanRequest
from memplan.recommend.band import Band
from memplan.results import LargestMicroBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs import MemplanOptions, UserConfig
    from memplan.devices.cards import DeviceSpec
    from memplan.planning.subject import Subject
    from memplan.progress import Observer
    from memplan.recipe import Precision, Recipe
    from memplan.results import Estimate, Saving


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """What is to be predicted of a config's step.

    Args:
        options: what the caller requests; the config's own section applies to the rest.
        micro_batch_sizes: sizes to predict; None for the config's own.
        precisions: precisions to predict; None for the config's own.
        world_size: data-parallel replicas; None for as many as the config is written for.
        with_savings: whether to ask what would save memory, where one recipe is predicted; it takes a trace a change.
        with_snapshot: whether to write the timeline in PyTorch's snapshot format; for one recipe on a card only.
        trace_limit_s: how long one trace may take; None for the estimator's own limit.
    """

    options: MemplanOptions
    micro_batch_sizes: Sequence[int] | None
    precisions: Sequence[Precision] | None
    world_size: int | None
    with_savings: bool
    with_snapshot: bool
    trace_limit_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What was predicted.

    Args:
        estimates: one for each precision and micro-batch size, in the order asked for.
        largest: for each precision the largest micro-batch within the upper edge of the band, and within the device.
        savings: what changes to the one recipe would save; empty where several were asked for.
        config_notes: what a reader should know of the config, one phrase each.
        snapshot: content of a file that PyTorch's memory visualiser opens; None where none was asked for.
    """

    estimates: tuple[Estimate, ...]
    largest: tuple[LargestMicroBatch, ...]
    savings: tuple[Saving, ...]
    config_notes: tuple[str, ...]
    snapshot: bytes | None


def estimate_subject(
    subject: Subject, device: str, budget_bytes: int | None, observer: Observer, *, trace_limit_s: float | None
) -> Estimate:
    """Predict the step of a subject's current recipe on a device."""
    traces = Traces(subject.source, device_for(device, budget_bytes), observer, trace_limit_s=trace_limit_s)
    return traces.estimate(subject.current)


def estimate_config(config: UserConfig, request: EstimateRequest, observer: Observer) -> Predictions:
    """Predict a config's step at several micro-batch sizes and precisions.

    Raises:
        UsageError: a snapshot of several recipes, or of a step on the CPU, is asked for.
    """
    subject = subject_of_config(config, world_size=request.world_size)
    recipes = [
        replace(subject.current, micro_batch_size=size, precision=precision)
        for precision in request.precisions or (subject.current.precision,)
        for size in request.micro_batch_sizes or (subject.current.micro_batch_size,)
    ]
    options = request.options.over(config.memplan_options)
    device = device_for("auto" if options.device is None else options.device, parse_budget(options.budget))
    if request.with_snapshot:
        _check_snapshot(len(recipes), device)
    with trace_template() as template:
        traces = Traces(
            subject.source,
            device,
            observer,
            trace_limit_s=request.trace_limit_s,
            template=template,
            exact_sizes=tuple(each.micro_batch_size for each in recipes),
        )
        estimates = tuple(traces.estimate(recipe) for recipe in recipes)
        is_single = len(recipes) == 1
        return Predictions(
            estimates=estimates,
            config_notes=config.notes,
            largest=_largest_micro_batches(recipes, device, options.max_util, traces),
            snapshot=traces.snapshot(recipes[0]) if request.with_snapshot else None,
            savings=possible_savings(estimates[0], device, traces) if request.with_savings and is_single else (),
        )


def _largest_micro_batches(
    recipes: Sequence[Recipe], device: DeviceSpec, max_utilisation: float | None, traces: Traces
) -> tuple[LargestMicroBatch, ...]:
    """Solve for the largest micro-batch of each precision, within the band's upper edge and within the device."""
    defaults = PlanRequest()
    cap = defaults.largest_micro_batch(max(recipe.micro_batch_size for recipe in recipes))
    of_each_precision = {recipe.precision: recipe for recipe in recipes}
    found = []
    for recipe in of_each_precision.values():
        peak_at = traces.process_peak(recipe)
        for share in dict.fromkeys((max_utilisation or defaults.max_utilisation, 1.0)):
            limit_bytes = Band(total_bytes=device.total_bytes, min_utilisation=0, max_utilisation=share).upper_bytes
            size = largest_micro_batch(peak_at, limit_bytes=limit_bytes, cap=cap)
            found.append(
                LargestMicroBatch(
                    precision=recipe.precision,
                    share=share,
                    limit_bytes=limit_bytes,
                    micro_batch_size=size,
                    reached_cap=size == cap,
                )
            )
    return tuple(found)


def _check_snapshot(recipe_count: int, device: DeviceSpec) -> None:
    if recipe_count > 1:
        raise UsageError(
            f"a snapshot shows one recipe, and {recipe_count} are asked for",
            hint="name one --batch-size and one --precision",
        )
    if device.kind is not DeviceKind.CUDA:
        raise UsageError("a memory snapshot shows the CUDA allocator", hint="choose a card with --device")
