"""The config's data loader under a recommended recipe: what a plan says about it, and what it changes if asked to."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.configs import KnobName
from memplan.configs.ecosystems.registry import ecosystem_named
from memplan.devices.cards import DeviceKind
from memplan.devices.host_memory import host_memory
from memplan.recommend.data_loader import LoaderSettings, LoaderSurroundings, better_settings, loader_remarks
from memplan.recommend.speeds import fastest_run
from memplan.results import timed_loader

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memplan.configs import Knob, UserConfig
    from memplan.devices.cards import DeviceSpec
    from memplan.patches import ConfigPatch
    from memplan.planning.recommendation import Recommendation
    from memplan.results import Estimate, Trial

_FIELDS = {
    KnobName.LOADER_WORKERS: "workers",
    KnobName.PIN_MEMORY: "pin_memory",
    KnobName.PREFETCH_FACTOR: "prefetch_factor",
    KnobName.PERSISTENT_WORKERS: "persistent_workers",
}


def loader_changes(
    config: UserConfig | None, device: DeviceSpec, estimate: Estimate | None
) -> dict[KnobName, int | bool]:
    """Return improved loader settings, as far as the config has, or can be given, keys for them.

    They follow from what the config said before memplan first changed it.
    """
    if config is None:
        return {}
    loader_key = ecosystem_named(config.format_name).loader_key
    values = {name: config.original_value(knob.key, knob.value) for name, knob in _knobs(config).items()}
    better = better_settings(_settings(values), _surroundings(device, estimate))
    wanted = {name: getattr(better, field) for name, field in _FIELDS.items()}
    return {
        name: value
        for name, value in wanted.items()
        if value is not None and loader_key(config, name) is not None and value != _current(config, name)
    }


def loader_notes(
    config: UserConfig | None,
    device: DeviceSpec,
    wanted: Recommendation,
    patch: ConfigPatch | None = None,
    *,
    is_asked_for: bool = False,
) -> tuple[str, ...]:
    """Return what a user should know about the loader under a recommended recipe, one phrase each.

    Args:
        config: the config; None where there is none.
        device: what the plan is for.
        wanted: what is recommended.
        patch: what is going to change in the config.
        is_asked_for: whether the patch was to change the loader's settings.
    """
    estimate = wanted.estimate
    around = replace(
        _surroundings(device, estimate),
        speed=timed_loader(wanted.trials),
        trained_samples_per_s=None if wanted.chosen is None else _trained_per_s(wanted.chosen, wanted.trials),
    )
    if config is None:
        return loader_remarks(_as_timed(LoaderSettings(), around), around)
    loader_key = ecosystem_named(config.format_name).loader_key
    better = loader_changes(config, device, estimate)
    written = {each.key for each in patch.changes} if patch else set()
    values: dict[KnobName, object] = {name: knob.value for name, knob in _knobs(config).items()}
    values |= {name: value for name, value in better.items() if loader_key(config, name) in written}
    left = [f"{key}={value}" for name, value in better.items() if (key := loader_key(config, name)) not in written]
    lead = "the patch cannot set" if is_asked_for else "with --loader the patch would also set"
    remarks = loader_remarks(_as_timed(_settings(values), around), around)
    return (*remarks, f"{lead} {', '.join(left)}") if left else remarks


def _trained_per_s(trial: Trial, trials: Iterable[Trial]) -> float | None:
    """Return the samples that a trial trained in a second, of batches as most are."""
    measured = trial.outcome.measurement
    if measured is None or measured.typical is None:
        return fastest_run(trial.recipe, trials)
    return measured.typical.samples_per_s


def _knobs(config: UserConfig) -> Mapping[KnobName, Knob]:
    found = {name: config.knob(name) for name in _FIELDS}
    return {name: knob for name, knob in found.items() if knob is not None}


def _current(config: UserConfig, name: KnobName) -> object:
    knob = config.knob(name)
    return None if knob is None else knob.value


def _settings(values: Mapping[KnobName, object]) -> LoaderSettings:
    return LoaderSettings(
        workers=_count(values.get(KnobName.LOADER_WORKERS)),
        pin_memory=_switch(values.get(KnobName.PIN_MEMORY)),
        prefetch_factor=_count(values.get(KnobName.PREFETCH_FACTOR)),
        persistent_workers=_switch(values.get(KnobName.PERSISTENT_WORKERS)),
    )


def _as_timed(settings: LoaderSettings, around: LoaderSurroundings) -> LoaderSettings:
    """Return settings with the workers that were seen where a loader was timed, if the config tells none."""
    if settings.workers is not None or around.speed is None:
        return settings
    return replace(settings, workers=around.speed.workers)


def _surroundings(device: DeviceSpec, estimate: Estimate | None) -> LoaderSurroundings:
    memory = host_memory() if device.is_here else None
    return LoaderSurroundings(
        on_cuda=device.kind is DeviceKind.CUDA,
        cpu_count=len(os.sched_getaffinity(0)) if device.is_here else None,
        batch_bytes=None if estimate is None else estimate.breakdown.inputs,
        host_bytes=None if memory is None else memory.limit_bytes,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _switch(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
