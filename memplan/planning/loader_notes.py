"""What a plan says about the config's data loader."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from memplan.cards import DeviceKind
from memplan.configs.user_config import KnobName
from memplan.recommend.loader import LoaderSettings, loader_remarks

if TYPE_CHECKING:
    from memplan.cards import DeviceSpec
    from memplan.configs import UserConfig
    from memplan.results import Estimate


def loader_notes(config: UserConfig | None, device: DeviceSpec, estimate: Estimate | None) -> tuple[str, ...]:
    """Return what a user should know of the loader beside a recommended recipe, one sentence each."""
    if config is None:
        return ()
    return loader_remarks(
        LoaderSettings(
            workers=_value_of(config, KnobName.LOADER_WORKERS),
            pin_memory=_switch_of(config, KnobName.PIN_MEMORY),
            prefetch_factor=_value_of(config, KnobName.PREFETCH_FACTOR),
            persistent_workers=_switch_of(config, KnobName.PERSISTENT_WORKERS),
        ),
        on_cuda=device.kind is DeviceKind.CUDA,
        cpu_count=len(os.sched_getaffinity(0)) if device.is_here else None,
        batch_bytes=None if estimate is None else estimate.breakdown.inputs,
    )


def _value_of(config: UserConfig, name: KnobName) -> int | None:
    knob = config.knob(name)
    is_count = knob is not None and isinstance(knob.value, int) and not isinstance(knob.value, bool)
    return knob.value if is_count and knob is not None else None


def _switch_of(config: UserConfig, name: KnobName) -> bool | None:
    knob = config.knob(name)
    return knob.value if knob is not None and isinstance(knob.value, bool) else None
