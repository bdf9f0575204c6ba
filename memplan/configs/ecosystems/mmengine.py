"""OpenMMLab 1.x: configs of mmengine's Runner (mmseg 1.x, mmdet 3.x, mmpretrain).

Keys and defaults from mmengine 0.10: ``train_cfg.by_epoch`` or the loop's type says what lengths count; a parameter
scheduler counts epochs unless ``by_epoch=False``, then optimizer-wrapper calls, which are forward/backward passes;
``CheckpointHook`` counts epochs unless ``by_epoch=False``. A top-level ``optimizer`` is only a name in a base file:
what counts is ``optim_wrapper.optimizer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from memplan.configs.ecosystems.ecosystem import torch_loader_keys
from memplan.configs.ecosystems.openmmlab import (
    OpenMMLab,
    at_run_time,
    before_run_time,
)
from memplan.configs.keys import contains, get, with_value
from memplan.configs.knob_changes import additions, assigned, obstacle_of_single_values, single_assignments
from memplan.configs.knobs import RECIPE_KNOBS, declared_recipe, keys_in
from memplan.configs.languages.registry import PYTHON
from memplan.configs.user_config import KnobName
from memplan.errors import ConfigError
from memplan.recipe import Precision

if TYPE_CHECKING:
    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig
    from memplan.recipe import Recipe

_OLD_BATCH_KEYS = ("data.samples_per_gpu", "data.train_dataloader.samples_per_gpu")
_AMP, _PLAIN = "AmpOptimWrapper", "OptimWrapper"
_WRAPPER = "optim_wrapper"
_PACKAGE = "mmengine.optim"
_STEPS_KEY = f"{_WRAPPER}.accumulative_counts"
_DTYPES = {Precision.FP16: "float16", Precision.BF16: "bfloat16"}
_SCHEDULER_LENGTHS = (
    "begin",
    "end",
    "milestones",
    "step_size",
    "T_max",
    "total_iters",
    "total_steps",
    "periods",
    "T_0",
)
_SCHEDULER_RATES = ("eta_min", "eta_max")


class MMEngine(OpenMMLab):
    """Configs of mmengine's Runner."""

    name = "mmengine"
    workload_target = "memplan.integrations.mmengine:make_workload"
    loader_keys = torch_loader_keys("train_dataloader.")
    addable_loader_keys: ClassVar[Mapping[KnobName, str]] = {
        KnobName.PIN_MEMORY: "train_dataloader.pin_memory",
        KnobName.PERSISTENT_WORKERS: "train_dataloader.persistent_workers",
    }

    def recognises(self, document: Document) -> bool:
        """Recognise a Python config with the Runner's training loader or optimizer wrapper."""
        keys = ("train_dataloader.batch_size", f"{_WRAPPER}.optimizer", f"{_WRAPPER}.type")
        return document.language is PYTHON and any(contains(document.values, key) for key in keys)

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the keys of the Runner's sections."""
        keys = {
            KnobName.MICRO_BATCH_SIZE: ("train_dataloader.batch_size",),
            KnobName.LEARNING_RATE: (f"{_WRAPPER}.optimizer.lr",),
            KnobName.MIN_LEARNING_RATE: tuple(_scheduler_keys(document.values, _SCHEDULER_RATES)),
            KnobName.ACTIVATION_CHECKPOINTING: ("model.backbone.with_cp",),
            KnobName.ACCUMULATION_STEPS: (_STEPS_KEY,),
            KnobName.ITERATIONS: tuple(_iteration_keys(document.values)),
        }
        return keys_in(document.values, keys)

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe; mapped keys win over the optimizer wrapper, the rate is the one at run time.

        Raises:
            ConfigError: the batch size is missing, or is where only mmcv's runners look for it.
        """
        old = next((key for key in _OLD_BATCH_KEYS if contains(document.values, key)), None)
        if old is not None and not keys.get(KnobName.MICRO_BATCH_SIZE):
            raise ConfigError(
                f"the config sets no micro-batch size that mmengine's Runner reads: {old} is for mmcv's runners",
                where=str(document.path),
                hint="give it a train_dataloader, without which the Runner trains nothing",
            )
        return at_run_time(document.values, declared_recipe(document, keys, precision=_precision(document.values)))

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Return what users easily overlook in these configs."""
        found: list[str] = []
        if not keys.get(KnobName.LEARNING_RATE):
            found.append("the config has no optim_wrapper.optimizer.lr, so its learning rates are left alone")
        if "activation_checkpointing" in document.values:
            found.append("activation_checkpointing names modules of the model; memplan leaves it as it is")
        if document.values.get("compile"):
            found.append("compile is left out where the step is built from this config, which takes more without it")
        return tuple(found)

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return why this config's wrapper cannot express a recipe."""
        if found := obstacle_of_single_values(config, recipe, names=_by_key(config)):
            return found
        is_told = recipe.precision != config.recipe.precision or recipe.accumulation_steps > 1
        if is_told and not isinstance(config.values.get(_WRAPPER), Mapping):
            return f"the config has no {_WRAPPER}, which sets precision and accumulation"
        if config.knob(KnobName.PRECISION) is not None or recipe.precision == config.recipe.precision:
            return None
        if recipe.precision not in (Precision.FP32, *_DTYPES):
            return f"configs of mmengine have no key for {recipe.precision}"
        wrapper = _wrapper(config.values)
        return None if wrapper in (_PLAIN, _AMP) else f"{_WRAPPER}.type={wrapper!r} is a wrapper memplan does not know"

    def obstacle_on_cpu(self, config: UserConfig, precision: Precision) -> str | None:
        """Refuse autocast, as AmpOptimWrapper asserts an accelerator, unless the user's own key switches it."""
        is_own = config.knob(KnobName.PRECISION) is not None
        return None if is_own or precision is Precision.FP32 else f"mmengine does not train in {precision} on the CPU"

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return batch, learning rate and schedule, and the optimizer wrapper's settings."""
        names = (*_by_key(config), KnobName.MIN_LEARNING_RATE, KnobName.ITERATIONS)
        singles = [before_run_time(config, change, each) for each in single_assignments(config, change, names=names)]
        return _wrapper_assignments(config, change, singles)


def _by_key(config: UserConfig) -> tuple[KnobName, ...]:
    """Leave out what the optimizer wrapper sets, precision and accumulation, unless there are keys for them."""
    by_wrapper = (KnobName.PRECISION, KnobName.ACCUMULATION_STEPS)
    return tuple(each for each in RECIPE_KNOBS if each not in by_wrapper or config.knob(each) is not None)


def _wrapper(values: Mapping[str, Any]) -> str:
    """Return the wrapper's class without its package: the pure-Python style names it in full."""
    return str(get(values, f"{_WRAPPER}.type") or _PLAIN).rpartition(".")[2]


def _named(values: Mapping[str, Any], wrapper: str) -> str:
    """Return how a wrapper is named in this config: in full where the one it has is, else by its registered name."""
    return f"{_PACKAGE}.{wrapper}" if "." in str(get(values, f"{_WRAPPER}.type")) else wrapper


def _precision(values: Mapping[str, Any]) -> Precision:
    if _wrapper(values) != _AMP:
        return Precision.FP32
    return Precision.BF16 if get(values, f"{_WRAPPER}.dtype") == _DTYPES[Precision.BF16] else Precision.FP16


def _counts_iterations(values: Mapping[str, Any]) -> bool:
    loop, by_epoch = get(values, "train_cfg.type"), get(values, "train_cfg.by_epoch")
    return by_epoch is False or (by_epoch is None and "IterBased" in str(loop))


def _iteration_keys(values: Mapping[str, Any]) -> list[str]:
    """Return the keys counted in forward/backward passes; epochs and ratios stay as they are."""
    found = []
    if _counts_iterations(values):
        found = ["train_cfg.max_iters", "train_cfg.val_interval", "train_cfg.val_begin"]
    if get(values, "default_hooks.checkpoint.by_epoch") is False:
        found.append("default_hooks.checkpoint.interval")
    found += _scheduler_keys(values, _SCHEDULER_LENGTHS)
    return [key for key in found if isinstance(get(values, key), int | float | list | tuple)]


def _scheduler_keys(values: Mapping[str, Any], names: tuple[str, ...]) -> list[str]:
    """Return keys of the parameter schedulers: lengths of those that count iterations, rates of all of them."""
    schedulers = values.get("param_scheduler")
    entries = schedulers if isinstance(schedulers, list | tuple) else [schedulers]
    found = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or (names is _SCHEDULER_LENGTHS and entry.get("by_epoch", True)):
            continue
        prefix = f"param_scheduler.{index}" if entries is schedulers else "param_scheduler"
        found += [f"{prefix}.{name}" for name in names if isinstance(entry.get(name), int | float | list | tuple)]
    return found


def _wrapper_assignments(config: UserConfig, change: RecipeChange, singles: list[Assignment]) -> list[Assignment]:
    """Add accumulation and precision to the single values; leaving autocast replaces the wrapper's whole dict."""
    precision, steps = change.recipe.precision, {KnobName.ACCUMULATION_STEPS: _STEPS_KEY}
    found = [*singles, *additions(config, change, steps)]
    if config.knob(KnobName.PRECISION) is not None or precision == config.recipe.precision:
        return found
    if precision in _DTYPES:
        wanted = _amp_settings(config.values, precision).items()
        return [*found, *(assigned(change, KnobName.PRECISION, f"{_WRAPPER}.{key}", value) for key, value in wanted)]
    inside = {each.key: each.value for each in found if each.key.startswith(f"{_WRAPPER}.")}
    outside = [each for each in found if each.key not in inside]
    return [*outside, assigned(change, KnobName.PRECISION, _WRAPPER, _without_amp(config.values, inside))]


def _amp_settings(values: Mapping[str, Any], precision: Precision) -> dict[str, Any]:
    settings: dict[str, Any] = {"type": _named(values, _AMP), "dtype": _DTYPES[precision]}
    if _wrapper(values) == _AMP:
        del settings["type"]
    if precision is Precision.FP16 and not contains(values, f"{_WRAPPER}.loss_scale"):
        settings["loss_scale"] = "dynamic"
    return settings


def _without_amp(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    changed: Mapping[str, Any] = values
    for key, value in changes.items():
        changed = with_value(changed, key, value)
    kept = {key: value for key, value in changed[_WRAPPER].items() if key not in ("dtype", "loss_scale")}
    return {**kept, "type": _named(values, _PLAIN)}
