"""What one change to a recipe would save: each change is traced and replayed, none is guessed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind
from memplan.errors import MemplanError
from memplan.estimators import TracedSetting
from memplan.recipe import Precision
from memplan.recommend.number_formats import why_unsupported
from memplan.results import Saving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.devices.cards import DeviceSpec
    from memplan.planning.traces import Traces
    from memplan.recipe import Recipe
    from memplan.results import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingChange:
    """A change to a recipe that may save memory; an obstacle says why it is of no use on the device."""

    name: str
    setting: TracedSetting
    obstacle: str | None = None


def saving_changes(recipe: Recipe, device: DeviceSpec) -> Iterator[SavingChange]:
    """Name the changes that may save memory: checkpointing, bf16 and a fused optimizer."""
    if not recipe.activation_checkpointing:
        checkpointed = replace(recipe, activation_checkpointing=True)
        yield SavingChange(name="activation checkpointing", setting=TracedSetting(recipe=checkpointed))
    if recipe.precision in (Precision.FP32, Precision.TF32):
        halved = TracedSetting(recipe=replace(recipe, precision=Precision.BF16))
        obstacle = why_unsupported(Precision.BF16, device)
        yield SavingChange(name="bf16 autocast", setting=halved, obstacle=obstacle)
    if device.kind is DeviceKind.CUDA:
        yield SavingChange(name="fused optimizer", setting=TracedSetting(recipe=recipe, fused_optimizer=True))


def saving_of(change: SavingChange, estimate: Estimate, traces: Traces) -> Saving:
    """Say what a change would take off an estimate's process peak."""
    if change.obstacle is not None:
        return Saving(change=change.name, obstacle=change.obstacle)
    recipe = change.setting.recipe
    try:
        peak_at = traces.process_peak(recipe, fused_optimizer=change.setting.fused_optimizer)
        peak_process_bytes = peak_at(recipe.micro_batch_size)
    except MemplanError as error:
        return Saving(change=change.name, obstacle=error.problem)
    return Saving(
        change=change.name,
        peak_process_bytes=peak_process_bytes,
        saved_bytes=estimate.peak_process_bytes - peak_process_bytes,
    )
