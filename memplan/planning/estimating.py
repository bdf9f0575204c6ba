"""What `memplan estimate` and `memplan.estimate` ask: the peaks of one subject's step, for one or several recipes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind
from memplan.errors import UsageError
from memplan.estimators import TracedSetting, largest_micro_batch, trace_template
from memplan.planning.options import parse_budget
from memplan.planning.question import device_for
from memplan.planning.savings import saving_changes, saving_of
from memplan.planning.subject import subject_of_config
from memplan.planning.traces import Traces
from memplan.plans import PlanRequest
from memplan.recommend.band import Band
from memplan.recommend.number_formats import why_unsupported
from memplan.results import LargestMicroBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
        devices: names or sizes of the devices to predict for; None for the config's own.
        options: what else the caller requests; the config's own section applies to the rest.
        micro_batch_sizes: sizes to predict; None for the config's own.
        precisions: precisions to predict; None for the config's own.
        world_size: data-parallel replicas; None for as many as the config is written for.
        with_savings: whether to ask what would save memory, where one recipe is predicted; it takes a trace a change.
        with_snapshot: whether to write the timeline in PyTorch's snapshot format; for one recipe on a card only.
        trace_limit_s: how long one trace may take; None for the estimator's own limit.
    """

    devices: Sequence[str] | None
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
        estimates: one for each device, precision and micro-batch size, in the order asked for.
        largest: for each device and precision the largest micro-batch within the band's upper edge, and within the
            device.
        savings: what changes to the one recipe would save; empty where several, or several devices, were asked for.
        notes: what a reader should know of the config and the devices, one phrase each.
        snapshot: content of a file that PyTorch's memory visualiser opens; None where none was asked for.
    """

    estimates: tuple[Estimate, ...]
    largest: tuple[LargestMicroBatch, ...]
    savings: tuple[Saving, ...]
    notes: tuple[str, ...]
    snapshot: bytes | None


def estimate_subject(
    subject: Subject, device: str, budget_bytes: int | None, observer: Observer, *, trace_limit_s: float | None
) -> Estimate:
    """Predict the step of a subject's current recipe on a device."""
    traces = Traces(subject.source, device_for(device, budget_bytes), observer, trace_limit_s=trace_limit_s)
    return traces.estimate(subject.current)


def estimate_config(config: UserConfig, request: EstimateRequest, observer: Observer) -> Predictions:
    """Predict a config's step at several micro-batch sizes and precisions, for one device or several.

    Raises:
        UsageError: a snapshot of several recipes or devices, or of a step on the CPU, is asked for.
    """
    subject = subject_of_config(config, world_size=request.world_size)
    recipes = [
        replace(subject.current, micro_batch_size=size, precision=precision)
        for precision in request.precisions or (subject.current.precision,)
        for size in request.micro_batch_sizes or (subject.current.micro_batch_size,)
    ]
    options = request.options.over(config.memplan_options)
    names = request.devices or ("auto" if options.device is None else options.device,)
    devices = [device_for(name, parse_budget(options.budget)) for name in names]
    if request.with_snapshot:
        _check_snapshot(len(recipes), devices)
    is_single = len(recipes) == len(devices) == 1
    changes = tuple(saving_changes(recipes[0], devices[0])) if request.with_savings and is_single else ()
    settings = [TracedSetting(recipe=each) for each in recipes]
    settings += [each.setting for each in changes if each.obstacle is None]
    estimates: list[Estimate] = []
    largest: list[LargestMicroBatch] = []
    with trace_template() as template:
        for device in devices:
            traces = Traces(
                subject.source,
                device,
                observer,
                trace_limit_s=request.trace_limit_s,
                template=template,
                exact_sizes=tuple(each.micro_batch_size for each in recipes),
            )
            traces.make_ahead(settings)
            estimates += [traces.estimate(recipe) for recipe in recipes]
            largest += _largest_micro_batches(recipes, device, options, traces)
        return Predictions(
            estimates=tuple(estimates),
            notes=(*config.notes, *_unsupported(recipes, devices)),
            largest=tuple(largest),
            snapshot=traces.snapshot(recipes[0]) if request.with_snapshot else None,
            savings=tuple(saving_of(each, estimates[0], traces) for each in changes),
        )


def _largest_micro_batches(
    recipes: Sequence[Recipe], device: DeviceSpec, options: MemplanOptions, traces: Traces
) -> Iterator[LargestMicroBatch]:
    """Solve for the largest micro-batch of each precision, within the band's upper edge and within the device."""
    wanted = PlanRequest(micro_batch_cap=options.max_batch)
    cap = wanted.largest_micro_batch(max(recipe.micro_batch_size for recipe in recipes))
    max_utilisation = wanted.max_utilisation if options.max_util is None else options.max_util
    of_each_precision = {recipe.precision: recipe for recipe in recipes}
    for recipe in of_each_precision.values():
        peak_at = traces.process_peak(recipe)
        for share in dict.fromkeys((max_utilisation, 1.0)):
            limit_bytes = Band(total_bytes=device.total_bytes, min_utilisation=0, max_utilisation=share).upper_bytes
            size = largest_micro_batch(peak_at, limit_bytes=limit_bytes, cap=cap)
            yield LargestMicroBatch(
                device_name=device.name,
                device_total_bytes=device.total_bytes,
                precision=recipe.precision,
                share=share,
                limit_bytes=limit_bytes,
                micro_batch_size=size,
                reached_cap=size == cap,
            )


def _unsupported(recipes: Sequence[Recipe], devices: Sequence[DeviceSpec]) -> Iterator[str]:
    """Name the precisions that are predicted for devices without units for them."""
    for precision in dict.fromkeys(recipe.precision for recipe in recipes):
        for device in devices:
            if (reason := why_unsupported(precision, device)) is not None:
                yield f"{reason}, and plans for it leave {precision} out"


def _check_snapshot(recipe_count: int, devices: Sequence[DeviceSpec]) -> None:
    if len(devices) > 1:
        raise UsageError(f"a snapshot shows one device, and {len(devices)} are asked for", hint="name one --device")
    if recipe_count > 1:
        raise UsageError(
            f"a snapshot shows one recipe, and {recipe_count} are asked for",
            hint="name one --batch-size and one --precision",
        )
    if devices[0].kind is not DeviceKind.CUDA:
        raise UsageError("a memory snapshot shows the CUDA allocator", hint="choose a card with --device")
