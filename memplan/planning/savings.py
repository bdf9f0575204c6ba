"""What one change to a recipe would save: each change is traced and replayed, none is guessed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind
from memplan.errors import MemplanError
from memplan.recipe import Precision
from memplan.recommend.number_formats import why_unsupported
from memplan.results import Saving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.devices.cards import DeviceSpec
    from memplan.planning.traces import Traces
    from memplan.recipe import Recipe
    from memplan.results import Estimate


def possible_savings(estimate: Estimate, device: DeviceSpec, traces: Traces) -> tuple[Saving, ...]:
    """Say what checkpointing, bf16 and a fused optimizer would each take off an estimate's process peak."""
    return tuple(_savings(estimate, device, traces))


def _savings(estimate: Estimate, device: DeviceSpec, traces: Traces) -> Iterator[Saving]:
    recipe = estimate.recipe
    if not recipe.activation_checkpointing:
        changed = replace(recipe, activation_checkpointing=True)
        yield _saving("activation checkpointing", estimate, changed, traces)
    if recipe.precision in (Precision.FP32, Precision.TF32):
        yield _bf16_saving(recipe, estimate, device, traces)
    if device.kind is DeviceKind.CUDA:
        yield _saving("fused optimizer", estimate, recipe, traces, fused_optimizer=True)


def _bf16_saving(recipe: Recipe, estimate: Estimate, device: DeviceSpec, traces: Traces) -> Saving:
    obstacle = why_unsupported(Precision.BF16, device)
    if obstacle is not None:
        return Saving(change="bf16 autocast", obstacle=obstacle)
    return _saving("bf16 autocast", estimate, replace(recipe, precision=Precision.BF16), traces)


def _saving(
    change: str, estimate: Estimate, changed: Recipe, traces: Traces, *, fused_optimizer: bool = False
) -> Saving:
    try:
        peak_at = traces.process_peak(changed, fused_optimizer=fused_optimizer)
        peak_process_bytes = peak_at(changed.micro_batch_size)
    except MemplanError as error:
        return Saving(change=change, obstacle=error.problem)
    return Saving(
        change=change,
        peak_process_bytes=peak_process_bytes,
        saved_bytes=estimate.peak_process_bytes - peak_process_bytes,
    )
