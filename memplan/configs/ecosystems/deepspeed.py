"""DeepSpeed's JSON, where it holds concrete values; ``"auto"`` belongs to the TrainingArguments and is left alone.

From DeepSpeed's configuration reference: ``train_batch_size = train_micro_batch_size_per_gpu *
gradient_accumulation_steps * replicas`` must hold; what is missing of the three is derived; the scheduler's lengths
count optimizer steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan.configs.ecosystems.ecosystem import Ecosystem
from memplan.configs.keys import contains, get, is_number
from memplan.configs.knob_changes import assigned, obstacle_of_single_values, single_assignments
from memplan.configs.knobs import count_at, rate_at
from memplan.configs.languages.registry import JSON
from memplan.configs.user_config import KnobName
from memplan.errors import ConfigError
from memplan.recipe import Precision, Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig

AUTO = "auto"
_MICRO, _STEPS, _GLOBAL = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"
_RATE = "optimizer.params.lr"
_SECTIONS = {Precision.FP16: "fp16", Precision.BF16: "bf16"}
_LENGTHS = ("scheduler.params.warmup_num_steps", "scheduler.params.total_num_steps")
_RATES = ("scheduler.params.warmup_max_lr", "scheduler.params.warmup_min_lr")
_AGREEING = (_MICRO, _STEPS, _GLOBAL, _RATE, *_RATES, *_LENGTHS, "fp16.enabled", "bf16.enabled")


class DeepSpeed(Ecosystem):
    """DeepSpeed's own JSON, the only source of its values."""

    name = "deepspeed"
    batch_of_all = _GLOBAL

    def recognises(self, document: Document) -> bool:
        """Recognise JSON with one of DeepSpeed's batch sizes or its ZeRO section."""
        signs = (_MICRO, _GLOBAL, "zero_optimization")
        return document.language is JSON and any(each in document.values for each in signs)

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the keys that hold numbers."""
        values = document.values
        keys = {
            KnobName.MICRO_BATCH_SIZE: (_MICRO,) if is_number(values.get(_MICRO)) else (_GLOBAL,),
            KnobName.ACCUMULATION_STEPS: (_STEPS,),
            KnobName.LEARNING_RATE: (_RATE,),
            KnobName.MIN_LEARNING_RATE: _RATES,
            KnobName.OPTIMIZER_STEPS: _LENGTHS,
        }
        return {name: tuple(each for each in found if is_number(get(values, each))) for name, found in keys.items()}

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Derive the recipe from whichever of the three batch sizes are set; one replica where they leave that open.

        Raises:
            ConfigError: they are ``"auto"``, or contradict each other.
        """
        if not keys.get(KnobName.MICRO_BATCH_SIZE):
            raise ConfigError(
                "the batch sizes are 'auto' or missing, so they are set by the training arguments",
                where=str(document.path),
                hint="name the file of the TrainingArguments",
            )
        micro, steps, replicas = _batch_sizes(document, keys[KnobName.MICRO_BATCH_SIZE][0])
        return Recipe(
            micro_batch_size=micro,
            accumulation_steps=steps,
            precision=_precision(document.values),
            learning_rate=rate_at(document, _RATE) if keys.get(KnobName.LEARNING_RATE) else None,
            world_size=replicas,
        )

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Say what the training arguments decide."""
        automatic = [key for key in _AGREEING if get(document.values, key) == AUTO]
        return (f"left to the training arguments: {', '.join(automatic)}",) if automatic else ()

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return why this file cannot express a recipe."""
        if found := obstacle_of_single_values(config, recipe, names=(KnobName.ACTIVATION_CHECKPOINTING,)):
            return found
        if recipe.precision == config.recipe.precision:
            return None
        if recipe.precision not in (Precision.FP32, *_SECTIONS):
            return f"DeepSpeed's JSON has no switch for {recipe.precision}"
        automatic = [f"{each}.enabled" for each in _SECTIONS.values() if _switch(config.values, each) == AUTO]
        return f"{automatic[0]} is 'auto': precision is set by the training arguments" if automatic else None

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the batch sizes, which agree with each other, the rates and lengths, and the precision's switches."""
        names = (KnobName.LEARNING_RATE, KnobName.MIN_LEARNING_RATE, KnobName.OPTIMIZER_STEPS)
        recipe, values = change.recipe, config.values
        wanted = {
            _MICRO: (recipe.micro_batch_size, KnobName.MICRO_BATCH_SIZE),
            _STEPS: (recipe.accumulation_steps, KnobName.ACCUMULATION_STEPS),
            _GLOBAL: (recipe.global_batch_size, KnobName.MICRO_BATCH_SIZE),
        }
        batches = [
            assigned(change, name, key, value)
            for key, (value, name) in wanted.items()
            if values.get(key) != AUTO and (key in values or (key == _STEPS and value > 1))
        ]
        return [*batches, *single_assignments(config, change, names=names), *_switches(config, change)]


def concrete_keys(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of a DeepSpeed file that must agree with the training arguments and are not ``"auto"``."""
    return tuple(key for key in _AGREEING if contains(values, key) and get(values, key) != AUTO)


def concrete_precision(values: Mapping[str, Any]) -> Precision | None:
    """Return the precision a DeepSpeed file sets itself; None where it leaves that to the training arguments."""
    has_switch = any(isinstance(_switch(values, section), bool) for section in _SECTIONS.values())
    return _precision(values) if has_switch else None


def replicas_beside(document: Document, recipe: Recipe) -> int:
    """Return the replicas for which a DeepSpeed file next to training arguments is written; 1 where that is open.

    Raises:
        ConfigError: its batch of all replicas is no multiple of what one takes by the arguments.
    """
    if not is_number(document.values.get(_GLOBAL)):
        return recipe.world_size
    total, own = count_at(document, _GLOBAL), recipe.micro_batch_size * recipe.accumulation_steps
    if total % own:
        what = f"{_GLOBAL}={total} is no multiple of the {own} samples that the training arguments give one replica"
        raise ConfigError(what, where=str(document.path))
    return total // own


def _batch_sizes(document: Document, micro_key: str) -> tuple[int, int, int]:
    """Return micro-batch, accumulation and replicas."""
    given = {key: count_at(document, key) for key in (_STEPS, _GLOBAL) if is_number(document.values.get(key))}
    steps, total = given.get(_STEPS), given.get(_GLOBAL)
    micro = (total or 1) // (steps or 1) if micro_key == _GLOBAL else count_at(document, micro_key)
    if total is None:
        return micro, steps or 1, 1
    rest, remainder = divmod(total, micro * (steps or 1))
    if remainder or rest < 1:
        what = f"{_GLOBAL}={total} is no multiple of {micro} samples times {steps or 1} steps"
        raise ConfigError(what, where=str(document.path))
    return (micro, rest, 1) if steps is None else (micro, steps, rest)


def _precision(values: Mapping[str, Any]) -> Precision:
    on = (precision for precision, section in _SECTIONS.items() if _switch(values, section) is True)
    return next(on, Precision.FP32)


def _switch(values: Mapping[str, Any], section: str) -> Any:
    return get(values, f"{section}.enabled")


def _switches(config: UserConfig, change: RecipeChange) -> list[Assignment]:
    wanted = change.recipe.precision
    if wanted == config.recipe.precision:
        return []
    found = []
    for precision, section in _SECTIONS.items():
        if section in config.values and _switch(config.values, section) is not None:
            found.append(assigned(change, KnobName.PRECISION, f"{section}.enabled", precision == wanted))
        elif precision == wanted:
            found.append(assigned(change, KnobName.PRECISION, section, {"enabled": True}))
    return found
