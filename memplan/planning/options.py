"""Options as text, from the command line or from the config's own ``memplan`` section, turned into a request."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from memplan.configs import PatchStyle
from memplan.errors import UnitError, UsageError
from memplan.launchers import launched_world_size, world_size_of_command
from memplan.plans import PlanRequest
from memplan.recipe import parse_precision
from memplan.recommend.scaling import LearningRateRule
from memplan.run_names import DEFAULT_STORE
from memplan.units import MIB, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import torch

    from memplan.configs import MemplanOptions
    from memplan.recipe import Precision

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|)\s*", re.IGNORECASE)
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


def request_from(
    options: MemplanOptions,
    *,
    world_size: int | None = None,
    in_place: bool = False,
    store: Path = DEFAULT_STORE,
    trace_limit: str | float | None = None,
    trial_limit: str | float | None = None,
    command: str | None = None,
    replicas: int | None = None,
) -> PlanRequest:
    """Turn options into a request; where they are silent, its defaults stand.

    Without a world size it is that of the launcher in the training command, that of the config's launcher
    (``replicas``), or of the one that started this process.

    Raises:
        UsageError: an option is not understood or out of range.
    """
    defaults = PlanRequest()
    return PlanRequest(
        device=defaults.device if options.device is None else options.device,
        budget_bytes=parse_budget(options.budget),
        max_utilisation=defaults.max_utilisation if options.max_util is None else options.max_util,
        min_utilisation=defaults.min_utilisation if options.min_util is None else options.min_util,
        precisions=parse_precisions(options.precision),
        global_batch_size=options.global_batch,
        micro_batch_cap=options.max_batch,
        learning_rate_rule=parse_rule(options.lr_rule),
        world_size=_launched(command, replicas) if world_size is None else world_size,
        patch_style=PatchStyle.IN_PLACE if in_place else None,
        store=store,
        change_loader=bool(options.loader),
        trace_limit_s=parse_duration(trace_limit, option="trace-limit"),
        trial_limit_s=parse_duration(trial_limit, option="trial-limit"),
    )


def _launched(command: str | None, replicas: int | None) -> int | None:
    return (world_size_of_command(command) if command else None) or replicas or launched_world_size(os.environ)


def parse_budget(budget: str | int | None) -> int | None:
    """Read a budget given as text or in bytes; None stays None.

    Raises:
        UsageError: the text is not a size, or its unit was forgotten.
    """
    if budget is None:
        return None
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise UsageError(f"budget {budget!r} is not understood", hint="write a whole number of bytes, or it as '10GiB'")
    try:
        budget_bytes = parse_bytes(budget) if isinstance(budget, str) else budget
    except UnitError as error:
        raise UsageError(f"budget {budget!r} is not understood", hint=error.hint) from None
    if budget_bytes < MIB:
        raise UsageError(f"budget {budget!r} is {budget_bytes} bytes", hint="write its unit, such as 10GiB")
    return budget_bytes


def parse_device(device: str | torch.device) -> str:
    """Read a device given by its name or as torch's own.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(device, str):
        return device
    if type(device).__module__ != "torch":  # which is not imported for that
        raise UsageError(f"device={device!r} is not understood", hint="write it like 'cuda:0', 'cpu' or 'rtx-3090'")
    return str(device)


def parse_duration(duration: str | float | None, *, option: str) -> float | None:
    """Read a time given in seconds or as text, such as ``90s``, ``30min`` or ``2h``, as seconds; None stays None.

    Args:
        duration: the time.
        option: what it was given for, without hyphens in front.

    Raises:
        UsageError: it is not a positive time.
    """
    if duration is None:
        return None
    match = _DURATION.fullmatch(str(duration))
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"{option} {duration!r} is not understood", hint="write it like 90s, 30min or 2h")
    return float(match[1]) * _SECONDS[match[2].lower()]


def parse_precisions(names: str | Sequence[str] | None) -> tuple[Precision, ...] | None:
    """Read ``fp32,bf16``, or names one by one; None for no names.

    Raises:
        UsageError: a name is not known.
    """
    each_name = names.split(",") if isinstance(names, str) else names
    return tuple(dict.fromkeys(map(parse_precision, each_name))) if each_name else None


def parse_devices(text: str | None) -> tuple[str, ...] | None:
    """Read names of devices such as ``t4,rtx-3090``, each once; None stays None.

    Raises:
        UsageError: there is nothing before or behind a comma.
    """
    if text is None:
        return None
    names = [each.strip() for each in text.split(",")]
    if not all(names):
        raise UsageError(f"device {text!r} must be names of devices", hint="write it like t4,rtx-3090")
    return tuple(dict.fromkeys(names))


def parse_sizes(text: str | None) -> tuple[int, ...] | None:
    """Read micro-batch sizes such as ``8,16,32``; None stays None.

    Raises:
        UsageError: one of them is not a whole number of at least 1.
    """
    if text is None:
        return None
    sizes = tuple(int(each) if each.strip().isdecimal() else 0 for each in text.split(","))
    if min(sizes) < 1:
        raise UsageError(f"batch-size {text!r} must be whole numbers of at least 1", hint="write it like 8,16,32")
    return sizes


def parse_rule(text: str | None) -> LearningRateRule | None:
    """Read a learning-rate rule; None where none was asked for.

    Raises:
        UsageError: there is no such rule.
    """
    if text is None:
        return None
    try:
        return LearningRateRule(str(text).strip().lower())
    except ValueError:
        raise UsageError(f"lr-rule {text!r} is not known", hint="use linear, sqrt or none") from None


def parse_knob_keys(pairs: Iterable[str]) -> dict[str, str]:
    """Read ``--map`` arguments such as ``micro_batch_size=data.batch_size``.

    Raises:
        UsageError: an argument is not of this form, or a knob is given twice.
    """
    keys: dict[str, str] = {}
    for pair in pairs:
        name, equals, key = (part.strip() for part in pair.partition("="))
        if not (name and equals and key):
            raise UsageError(f"map {pair!r} is not understood", hint="write it like micro_batch_size=data.batch_size")
        if name in keys:
            raise UsageError(f"map names the knob {name!r} twice: {keys[name]!r} and {key!r}")
        keys[name] = key
    return keys
