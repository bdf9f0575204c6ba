"""Plan a training by mmengine's Runner before it is built, and check the plan while it runs.

::

    cfg, plan = memplan.integrations.mmengine.tune(cfg)
    runner = Runner.from_cfg(cfg)
    runner.register_hook(MemplanHook(plan))
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from memplan.errors import UsageError
from memplan.integrations.extras import needs_extra
from memplan.integrations.parcels import Parcel
from memplan.integrations.tuning import PlanOptions, planned, refuse_unknown_options
from memplan.planning.stored_runs import stored_plan
from memplan.run_names import DEFAULT_STORE, LAST_RUN
from memplan.watching import watch

with needs_extra("mmengine", "mmengine"):
    from mmengine import registry
    from mmengine.config import Config
    from mmengine.hooks import Hook
    from mmengine.registry import HOOKS
    from mmengine.utils import import_modules_from_strings

from memplan.integrations.mmengine_step import Registered, RunnerStep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.plans import Plan
    from memplan.workload import Workload

_FORMAT = "mmengine"
_NEEDED = ("model", "train_dataloader", "optim_wrapper")
_SCRIPT = "__main__"
_AVERAGING = "EMAHook"
_SHARDING = ("FSDP", "FullySharded", "DeepSpeed", "ColossalAI")


def tune(cfg: Any, **options: Unpack[PlanOptions]) -> tuple[Any, Plan]:
    """Plan the training that a Runner of this Config would do.

    Micro-batch, accumulation, precision, learning rate and what is counted in iterations are set in a copy of the
    config, which must be made before the Runner is.

    Args:
        cfg: the Config, command-line options merged in.
        options: as for :func:`memplan.plan`.

    Returns:
        A copy of the config with the plan's values, and the plan.

    Raises:
        UsageError: an option is not known, or the config lacks model, training data or optimizer, or shards the model.
        MemplanError: as for :func:`memplan.plan`.
    """
    refuse_unknown_options(tune, options)
    _refuse_what_cannot_be_planned(cfg)
    registered = _registered()
    step = RunnerStep(Parcel((cfg, registered)), modules=registered.modules)
    plan = planned(
        _workload_of(step, cfg),
        cfg.to_dict(),
        format_name=_FORMAT,
        options=options,
    )
    return plan.apply(copy.deepcopy(cfg), format_name=_FORMAT), plan


def make_workload(config: Mapping[str, Any]) -> Workload:
    """Make the workload of a config that ``memplan estimate`` or ``probe`` is given, where it names none of its own.

    The config's ``default_scope`` and ``custom_imports`` say where its classes are registered.

    Raises:
        UsageError: the config lacks model, training data or optimizer, or shards the model.
    """
    cfg = Config(dict(config))
    _refuse_what_cannot_be_planned(cfg)
    if cfg.get("custom_imports"):
        import_modules_from_strings(**cfg.custom_imports)
    step = RunnerStep(Parcel((cfg, Registered(modules=(), classes=()))), modules=())
    step.set_up()
    return _workload_of(step, cfg)


def _workload_of(step: RunnerStep, cfg: Any) -> Workload:
    return step.workload(
        grad_clip_norm=_clip_norm(cfg.optim_wrapper), evaluates=_validates(cfg), ema=_averages_on_device(cfg)
    )


def _refuse_what_cannot_be_planned(cfg: Any) -> None:
    missing = [name for name in _NEEDED if not isinstance(cfg.get(name), Mapping)]
    if missing:
        raise UsageError(f"the config has no {' and no '.join(missing)}", hint="name a config that trains")
    _refuse_sharding(cfg)


def _refuse_sharding(cfg: Any) -> None:
    for name in ("strategy", "model_wrapper_cfg"):
        kind = str((cfg.get(name) or {}).get("type", ""))
        if any(word in kind for word in _SHARDING):
            raise UsageError(
                f"{name}.type={kind!r} shards the model, and memplan plans for one whole replica a device",
                hint=f"plan without {name}, on one device",
            )


def _clip_norm(wrapper: Mapping[str, Any]) -> float | None:
    """Return the largest gradient norm; clipping by value needs no memory of its own."""
    settings = wrapper.get("clip_grad") or {}
    return None if settings.get("type", "norm") != "norm" else settings.get("max_norm")


def _averages_on_device(cfg: Mapping[str, Any]) -> bool:
    """Whether an EMAHook keeps its average beside the model, as it does unless ``device`` says otherwise."""
    return any(
        _kind_of(hook).rpartition(".")[2] == _AVERAGING and "cpu" not in str(hook.get("device"))
        for hook in cfg.get("custom_hooks") or ()
        if isinstance(hook, Mapping)
    )


def _validates(cfg: Mapping[str, Any]) -> bool:
    """Whether the Runner validates between steps."""
    return all(isinstance(cfg.get(name), Mapping) for name in ("val_dataloader", "val_cfg"))


def _kind_of(settings: Mapping[str, Any]) -> str:
    kind = settings.get("type")
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _registered() -> Registered:
    """Collect what scripts and packages have registered on top of mmengine itself."""
    found = list(_entries())
    modules = {each.__module__ for _, _, each in found if not _is_own(each.__module__)}
    return Registered(
        modules=tuple(sorted(modules - {_SCRIPT})),
        classes=tuple(entry for entry in found if entry[2].__module__ == _SCRIPT),
    )


def _entries() -> Iterator[tuple[str, str, Any]]:
    for name in dir(registry):
        held = getattr(registry, name)
        if isinstance(held, registry.Registry):
            for key, each in held.module_dict.items():
                yield name, key, each


def _is_own(module: str) -> bool:
    return module.partition(".")[0] in ("mmengine", "torch", "memplan")


@HOOKS.register_module()
class MemplanHook(Hook):
    """Compares what a training really takes with its plan by epochs and at its end, as ``memplan.watch`` does.

    A config may name it as ``dict(type='MemplanHook')``, which means the last stored plan; the script that reads such
    a config must import this module, or ``custom_imports`` name it.

    Args:
        plan: the plan that :func:`tune` returned; None for a stored one.
        run: id of the stored plan, or ``last``.
        store: folder in which plans are stored.

    Raises:
        UsageError: no plan is stored there.
    """

    priority = "VERY_LOW"

    def __init__(self, plan: Plan | None = None, run: str = LAST_RUN, store: str | Path = DEFAULT_STORE) -> None:
        planned_before = plan or stored_plan(Path(store), run)
        self._watch = watch(planned_before)

    def after_train_epoch(self, runner: Any) -> None:  # noqa: ARG002 - mmengine's interface
        """Compare, and warn the first time that the band is left."""
        self._watch.check()

    def before_val_epoch(self, runner: Any) -> None:
        """Compare before validation adds to the peak: the first time where training is counted in iterations."""
        if runner.iter:  # none where a script only validates
            self._watch.check()

    def after_train(self, runner: Any) -> None:  # noqa: ARG002 - mmengine's interface
        """Compare the peak of the whole training, validation included."""
        self._watch.check()
