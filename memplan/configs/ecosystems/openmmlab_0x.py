"""OpenMMLab 0.x: configs of mmcv's runners (mmseg 0.x, mmdet 2.x and their many descendants).

Keys and defaults from mmcv 1.x: ``IterBasedRunner.register_training_hooks`` sets ``by_epoch=False`` where a section is
silent, ``EpochBasedRunner`` leaves the hooks' own default of True; ``warmup_iters`` counts iterations under both unless
``warmup_by_epoch``. Gradient accumulation exists from mmcv 1.3.12; this generation has no bf16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from memplan.configs.assignments import Assignment
from memplan.configs.ecosystems.ecosystem import torch_loader_keys
from memplan.configs.ecosystems.openmmlab import (
    OpenMMLab,
    at_run_time,
    before_run_time,
)
from memplan.configs.keys import contains, get
from memplan.configs.knob_changes import assigned, obstacle_of_single_values, reason_for, single_assignments
from memplan.configs.knobs import RECIPE_KNOBS, declared_recipe, keys_in
from memplan.configs.languages.registry import PYTHON
from memplan.configs.user_config import KnobKeys, KnobName, RecipeChange, UserConfig
from memplan.recipe import Precision, Recipe

if TYPE_CHECKING:
    from memplan.configs.documents import Document

_MICRO_BATCH_KEYS = ("data.train_dataloader.samples_per_gpu", "data.samples_per_gpu", "data.imgs_per_gpu")
_HALF, _HALF_CUMULATIVE = "Fp16OptimizerHook", "GradientCumulativeFp16OptimizerHook"
_CUMULATIVE = "GradientCumulativeOptimizerHook"
_KNOWN_HOOKS = (None, "OptimizerHook", _CUMULATIVE, _HALF, _HALF_CUMULATIVE)
_HOOK_OWN_KEYS = frozenset({"type", "cumulative_iters", "loss_scale"})
_SIGNS = ("lr_config", "optimizer_config", "runner", "total_epochs", "total_iters", "checkpoint_config", "log_config")
_CUMULATIVE_KEY = "optimizer_config.cumulative_iters"


class OpenMMLab0(OpenMMLab):
    """Configs of mmcv's runners."""

    name = "openmmlab-0.x"
    loader_keys: ClassVar[KnobKeys] = {
        **torch_loader_keys("data.train_dataloader."),
        KnobName.LOADER_WORKERS: ("data.workers_per_gpu", "data.train_dataloader.num_workers"),
    }

    def recognises(self, document: Document) -> bool:
        """Recognise a Python config with mmcv's per-GPU batch size, or with two of the runners' sections."""
        if document.language is not PYTHON:
            return False
        has_batch = any(contains(document.values, key) for key in _MICRO_BATCH_KEYS)
        return has_batch or sum(each in document.values for each in _SIGNS) >= 2

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the keys of the runners' sections."""
        values = document.values
        present = [key for key in _MICRO_BATCH_KEYS if contains(values, key)]
        keys = {
            KnobName.MICRO_BATCH_SIZE: tuple(present[:1]),
            KnobName.LEARNING_RATE: ("optimizer.lr",),
            KnobName.MIN_LEARNING_RATE: ("lr_config.min_lr",),
            KnobName.ACTIVATION_CHECKPOINTING: ("model.backbone.with_cp",),
            KnobName.ITERATIONS: tuple(_iteration_keys(values)),
        }
        if _section(values, "optimizer_config").get("type") in (_CUMULATIVE, _HALF_CUMULATIVE):
            keys[KnobName.ACCUMULATION_STEPS] = (_CUMULATIVE_KEY,)
        return keys_in(values, keys)

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe; mapped keys for precision win over the optimizer hook, the rate is the one at run time."""
        return at_run_time(document.values, declared_recipe(document, keys, precision=_precision(document.values)))

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Return what users easily overlook in these configs."""
        values = document.values
        found: list[str] = []
        if _section(values, "fp16") and _is_iteration_based(values) and _hook(values) not in (_HALF, _HALF_CUMULATIVE):
            found.append(
                "fp16 without an Fp16OptimizerHook is taken as fp16 training, but mmseg 0.x ignores it in training"
            )
        if not keys.get(KnobName.LEARNING_RATE):
            found.append("the config has no optimizer.lr, so its learning rates are left alone")
        return tuple(found)

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return why this generation of configs cannot express a recipe."""
        if found := obstacle_of_single_values(config, recipe, names=_by_key(config, RECIPE_KNOBS)):
            return found
        if _wanted_hook(config, recipe) != _current_hook(config.values) and _hook(config.values) not in _KNOWN_HOOKS:
            return f"optimizer_config.type={_hook(config.values)!r} is a hook memplan does not know"
        expressed = (config.recipe.precision, Precision.FP32, Precision.FP16)
        if config.knob(KnobName.PRECISION) is None and recipe.precision not in expressed:
            return f"configs of mmcv's runners have no key for {recipe.precision}"
        return None

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return batch, learning rate and schedule, and the optimizer hook that accumulates and scales."""
        names = _by_key(config, (*RECIPE_KNOBS, KnobName.MIN_LEARNING_RATE, KnobName.ITERATIONS))
        singles = single_assignments(config, change, names=names)
        return [*(before_run_time(config, change, each) for each in singles), *_hook_assignments(config, change)]


def _by_key(config: UserConfig, names: tuple[KnobName, ...]) -> tuple[KnobName, ...]:
    """Leave out what the optimizer hook sets, precision and accumulation, unless the user mapped keys for them."""
    by_hook = {
        KnobName.PRECISION: config.knob(KnobName.PRECISION) is None,
        KnobName.ACCUMULATION_STEPS: _steps_by_hook(config),
    }
    return tuple(each for each in names if not by_hook.get(each, False))


def _steps_by_hook(config: UserConfig) -> bool:
    knob = config.knob(KnobName.ACCUMULATION_STEPS)
    return knob is None or knob.key == _CUMULATIVE_KEY


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _hook(values: Mapping[str, Any]) -> str | None:
    found = _section(values, "optimizer_config").get("type")
    return None if found is None else str(found)


def _is_iteration_based(values: Mapping[str, Any]) -> bool:
    runner = _section(values, "runner")
    if "type" in runner:
        return "IterBased" in str(runner["type"])
    return "max_iters" in runner or ("total_iters" in values and "total_epochs" not in values)


def _precision(values: Mapping[str, Any]) -> Precision:
    if _hook(values) in (_HALF, _HALF_CUMULATIVE) or _section(values, "fp16"):
        return Precision.FP16
    is_placeholder = _is_iteration_based(values) or values.get("fp16") is None
    return Precision.FP32 if is_placeholder else Precision.FP16


def _iteration_keys(values: Mapping[str, Any]) -> list[str]:
    """Return the keys counted in iterations; epochs and ratios stay as they are."""
    by_iteration = _is_iteration_based(values)
    found = ["runner.max_iters", "total_iters"] if by_iteration else []
    for section in ("lr_config", "momentum_config"):
        if not _section(values, section).get("warmup_by_epoch", False):
            found.append(f"{section}.warmup_iters")
        if not _section(values, section).get("by_epoch", not by_iteration):
            found += [f"{section}.step", f"{section}.periods", f"{section}.total_steps"]
    for section in ("checkpoint_config", "evaluation"):
        if not _section(values, section).get("by_epoch", not by_iteration):
            found.append(f"{section}.interval")
    if not _section(values, "evaluation").get("by_epoch", not by_iteration):
        found.append("evaluation.start")
    return [key for key in found if isinstance(get(values, key), int | float | list | tuple)]


def _current_hook(values: Mapping[str, Any]) -> tuple[Any, Any]:
    return values.get("optimizer_config"), values.get("fp16")


def _wanted_hook(config: UserConfig, recipe: Recipe) -> tuple[Any, Any]:
    """Return ``optimizer_config`` and ``fp16`` for a recipe, everything else in them (clipping) kept."""
    hook, fp16 = _current_hook(config.values)
    if _hook_duties(config, recipe) == _hook_duties(config, config.recipe):
        return hook, fp16
    current = _section(config.values, "optimizer_config")
    kept = {name: value for name, value in current.items() if name not in _HOOK_OWN_KEYS}
    untyped = kept if kept or hook is not None else hook
    scale = current.get("loss_scale", _section(config.values, "fp16").get("loss_scale", "dynamic"))
    match _hook_duties(config, recipe):
        case False, 1:
            return untyped, None
        case False, steps:
            return {"type": _CUMULATIVE, "cumulative_iters": steps, **kept}, None
        case True, 1 if _is_iteration_based(config.values):
            return {"type": _HALF, "loss_scale": scale, **kept}, {}
        case True, 1:
            return untyped, {"loss_scale": scale}
        case _, steps:
            return {"type": _HALF_CUMULATIVE, "cumulative_iters": steps, "loss_scale": scale, **kept}, None


def _hook_duties(config: UserConfig, recipe: Recipe) -> tuple[bool, int]:
    """Whether the optimizer hook runs fp16 under a recipe, and over how many passes it accumulates."""
    by_hook = config.knob(KnobName.PRECISION) is None
    is_half = recipe.precision is Precision.FP16 if by_hook else _precision(config.values) is Precision.FP16
    return is_half, recipe.accumulation_steps if _steps_by_hook(config) else 1


def _hook_assignments(config: UserConfig, change: RecipeChange) -> list[Assignment]:
    hook, fp16 = _wanted_hook(config, change.recipe)
    before_hook, before_fp16 = _current_hook(config.values)
    reason = _hook_reason(config, change)
    found: list[Assignment] = []
    if hook != before_hook:
        found.append(_hook_change(hook, before_hook, reason))
    if fp16 != before_fp16:
        found.append(assigned(change, KnobName.PRECISION, "fp16", fp16))
    return found


def _hook_change(hook: Any, before: Any, reason: str) -> Assignment:
    steps = "cumulative_iters"
    if isinstance(before, Mapping) and steps in before and steps in hook and {**before, steps: hook[steps]} == hook:
        return Assignment(key=f"optimizer_config.{steps}", value=hook[steps], reason=reason)
    return Assignment(key="optimizer_config", value=hook, reason=reason)


def _hook_reason(config: UserConfig, change: RecipeChange) -> str:
    reasons = []
    if config.knob(KnobName.PRECISION) is None and change.recipe.precision != config.recipe.precision:
        reasons.append(f"{change.recipe.precision}: {reason_for(change, KnobName.PRECISION)}")
    if change.recipe.accumulation_steps != config.recipe.accumulation_steps:
        steps = change.recipe.accumulation_steps
        reasons.append(f"accumulation {steps}: {reason_for(change, KnobName.ACCUMULATION_STEPS)}")
    return "; ".join(reasons)
