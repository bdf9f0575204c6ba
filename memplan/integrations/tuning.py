"""What every framework's ``tune`` does: plan a workload, and say the plan in the framework's own keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from memplan import api
from memplan.cards import DeviceKind
from memplan.configs import RecipeChange, expressible
from memplan.configs.in_memory import changed_values
from memplan.devices import resolve_device
from memplan.planning.live import precisions_of
from memplan.recommend.scaling import iteration_factor, optimizer_step_factor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from memplan.configs import UserConfig
    from memplan.plans import Plan
    from memplan.progress import Observer
    from memplan.recipe import Precision
    from memplan.workload import Workload


class PlanOptions(TypedDict, total=False):
    """The options of :func:`memplan.plan` that every ``tune`` takes too."""

    device: str | None
    max_util: float | None
    min_util: float | None
    budget: str | int | None
    precisions: Sequence[str] | None
    global_batch: int | None
    lr_rule: str | None
    store: str | Path
    observer: Observer


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A plan and what it changes.

    Args:
        plan: the plan.
        changes: dotted key in the framework's settings -> new value; lengths counted in steps included.
    """

    plan: Plan
    changes: Mapping[str, Any]


def tuned(
    workload: Workload,
    config: UserConfig,
    *,
    world_size: int,
    on_cpu: frozenset[Precision],
    options: PlanOptions,
) -> Tuned:
    """Plan a workload that is trained by settings of a known ecosystem.

    Args:
        workload: what is trained.
        config: the settings, read.
        world_size: data-parallel replicas.
        on_cpu: the precisions in which the framework trains on the CPU.
        options: what is wanted of the device.

    Raises:
        MemplanError: as for :func:`memplan.plan`.
    """
    current = replace(config.recipe, world_size=world_size)
    chosen: PlanOptions = {**options, "precisions": options.get("precisions") or _precisions(config, options, on_cpu)}
    plan = api.plan(workload, recipe=current, **chosen)
    change = RecipeChange(
        recipe=plan.recipe,
        iteration_factor=iteration_factor(current, plan.recipe),
        optimizer_step_factor=optimizer_step_factor(current, plan.recipe),
    )
    return Tuned(plan=plan, changes=changed_values(config, change))


def _precisions(config: UserConfig, options: PlanOptions, on_cpu: frozenset[Precision]) -> list[str]:
    """Return the number formats that the device has and the framework's settings can say."""
    device = resolve_device(options.get("device") or "auto")
    is_cpu = device.kind is DeviceKind.CPU
    return [
        str(each)
        for each in precisions_of(device)
        if (not is_cpu or each in on_cpu) and expressible(config, replace(config.recipe, precision=each)) is None
    ]
