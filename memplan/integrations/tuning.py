"""The common part of every framework's ``tune``: read its settings, and plan for what they and the device support."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict

from memplan import api
from memplan.configs import expressible
from memplan.configs.objects import config_of_object
from memplan.devices.cards import DeviceKind
from memplan.devices.resolving import resolve_device
from memplan.errors import UsageError, hint_on_names
from memplan.recipe import Recipe
from memplan.recommend.number_formats import precisions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from memplan.configs import UserConfig
    from memplan.plans import Plan
    from memplan.progress import Observer
    from memplan.workload import Workload


class PlanOptions(TypedDict, total=False):
    """The options of :func:`memplan.plan` that every ``tune`` takes too."""

    device: str | None
    max_util: float | None
    min_util: float | None
    budget: str | int | None
    precision: str | Sequence[str] | None
    global_batch: int | None
    max_batch: int | None
    lr_rule: str | None
    world_size: int | None
    wait: bool
    wait_limit: str | float | None
    trace_limit: str | float | None
    trial_limit: str | float | None
    fresh: bool
    store: str | Path
    observer: Observer


def refuse_unknown_options(tune: Callable[..., Any], options: Mapping[str, Any], *, elsewhere: str = "") -> None:
    """Refuse what a framework's ``tune`` does not take.

    Args:
        tune: the function.
        options: the keyword arguments that it does not name itself.
        elsewhere: where an argument may go that resembles none of the function's own, with ``{name}`` for its name.

    Raises:
        UsageError: an option is not known.
    """
    own = (*inspect.getfullargspec(tune).kwonlyargs, *PlanOptions.__annotations__)
    for name in options.keys() - PlanOptions.__annotations__.keys():
        hint = hint_on_names(name, own, otherwise=elsewhere.format(name=name))
        raise UsageError(f"tune takes no {name!r}", hint=hint)


def planned(
    workload: Workload,
    values: Mapping[str, Any],
    *,
    format_name: str,
    options: PlanOptions,
) -> Plan:
    """Plan a workload that is trained by settings of a known ecosystem.

    Args:
        workload: what is trained.
        values: the settings, nested, by the ecosystem's keys.
        format_name: the ecosystem.
        options: the options of the plan.

    Raises:
        MemplanError: as for :func:`memplan.plan`.
    """
    config = config_of_object(values, assumed=Recipe(micro_batch_size=1), format_name=format_name)
    precisions = options.get("precision") or _precisions(config, options)
    wanted: PlanOptions = {**options, "precision": precisions}
    return api.plan(workload, recipe=config.recipe, **wanted)


def _precisions(config: UserConfig, options: PlanOptions) -> list[str]:
    """Return the number formats that the device supports and the framework's settings can express."""
    device = resolve_device(options.get("device") or "auto")
    on_cpu = device.kind is DeviceKind.CPU
    return [
        str(each)
        for each in precisions_of(device)
        if expressible(config, replace(config.recipe, precision=each), on_cpu=on_cpu) is None
    ]
