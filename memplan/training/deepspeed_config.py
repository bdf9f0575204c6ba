"""DeepSpeed's configuration for a recipe, with nothing left to be filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memplan.errors import WorkloadError
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.recipe import Recipe

_SECTIONS = {Precision.BF16: "bf16", Precision.FP16: "fp16"}
_ZERO = "zero_optimization"
_FROM_ELSEWHERE = ("train_batch_size", "optimizer", "scheduler", "memplan")
_AUTO = "auto"
# What transformers makes of "auto", by the model's hidden size (HfTrainerDeepSpeedConfig of 5.23). All else that is
# "auto" is what the recipe says, or DeepSpeed's own default.
_AUTOMATIC_SIZES: dict[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda hidden: hidden * hidden,
    "stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}


def engine_config(
    config: Mapping[str, Any], recipe: Recipe, *, hidden_size: int | None, grad_clip_norm: float | None
) -> dict[str, Any]:
    """Return a configuration with a recipe's sizes and precision.

    Args:
        config: the user's, which may leave values to be filled in (``"auto"``).
        recipe: its sizes and precision.
        hidden_size: that of the model, by which sizes of buckets are filled in; None where it has none.
        grad_clip_norm: largest gradient norm, where the configuration has none; None for no clipping.

    Raises:
        WorkloadError: the recipe's precision is none of DeepSpeed's.
    """
    if recipe.precision in {Precision.BF16_TRUE, Precision.FP16_TRUE}:
        raise WorkloadError(
            f"DeepSpeed has no precision {recipe.precision}",
            hint=f"take {str(recipe.precision).removesuffix('-true')}: its weights are half there, and their masters "
            "single",
        )
    made = {name: value for name, value in _filled(config, {}).items() if name not in _FROM_ELSEWHERE}
    if grad_clip_norm is not None:
        made.setdefault("gradient_clipping", grad_clip_norm)
    for precision, section in _SECTIONS.items():
        made[section] = {**made.get(section, {}), "enabled": recipe.precision is precision}
    sizes = {} if hidden_size is None else {name: size(hidden_size) for name, size in _AUTOMATIC_SIZES.items()}
    return {
        **made,
        _ZERO: _filled(config.get(_ZERO, {}), sizes),
        "train_micro_batch_size_per_gpu": recipe.micro_batch_size,
        "gradient_accumulation_steps": recipe.accumulation_steps,
        "zero_allow_untested_optimizer": True,  # the workload's own
        "zero_force_ds_cpu_optimizer": False,  # of shards on the host likewise
    }


def _filled(config: Mapping[str, Any], automatic: Mapping[str, int]) -> dict[str, Any]:
    """Return a configuration without what is left to be filled in, unless a value for it is known."""
    known = {name: automatic.get(name) if value == _AUTO else value for name, value in config.items()}
    return {
        name: _filled(value, {}) if isinstance(value, Mapping) else value
        for name, value in known.items()
        if value is not None
    }
