"""The new values of knobs that are one value at one dotted key, and why a config cannot express a change."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from memplan.configs.assignments import Assignment
from memplan.configs.keys import is_number_of_steps
from memplan.configs.languages.argparse_source import flag_in, is_told_by_a_word, switch_in
from memplan.configs.languages.registry import ARGUMENTS, SHELL
from memplan.configs.languages.shell_source import switch_named
from memplan.configs.precision_words import spelled
from memplan.configs.user_config import Knob, KnobName, RecipeChange, UserConfig
from memplan.units import without_noise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from fractions import Fraction

    from memplan.recipe import Precision, Recipe

_SAME = 1e-12  # relative; nearer numbers differ by floating-point noise alone


def without_key(config: UserConfig, recipe: Recipe, names: Iterable[KnobName]) -> dict[KnobName, tuple[Any, Any]]:
    """Return the old and new value of each part of a recipe that changes and for which a config has no key."""
    parts = {name: (getattr(config.recipe, name), getattr(recipe, name)) for name in names}
    return {
        name: (before, after)
        for name, (before, after) in parts.items()
        if config.knob(name) is None and after not in (None, before) and not _follows_from_global(config, name)
    }


def _follows_from_global(config: UserConfig, name: KnobName) -> bool:
    """Whether a part of a recipe is accumulation, and the config says it by a global batch beside the micro-batch."""
    total, micro = config.knob(KnobName.GLOBAL_BATCH_SIZE), config.knob(KnobName.MICRO_BATCH_SIZE)
    is_beside = total is not None and micro is not None and total.key != micro.key
    return name is KnobName.ACCUMULATION_STEPS and is_beside


def obstacle_of_single_values(config: UserConfig, recipe: Recipe, *, names: Sequence[KnobName]) -> str | None:
    """Return why the mapped knobs cannot express a recipe, or None."""
    for name, (before, after) in without_key(config, recipe, names).items():
        if not config.is_set_beside(name):
            change = "" if name is KnobName.PRECISION else f", so {before} cannot become {after}"
            return f"the config has no key for {name}{change} (declare one with --map {name}=KEY)"
    if recipe.world_size != config.recipe.world_size:
        return "the number of replicas is set by the launcher, not by the config"
    if KnobName.PRECISION in names and config.recipe.precision != recipe.precision:
        return _precision_obstacle(config, recipe.precision)
    return None


def obstacle_of_switches(config: UserConfig, recipe: Recipe) -> str | None:
    """Return which switch of a command line a recipe would turn off, which nothing does; None for other configs.

    Not for the scripts of Hugging Face's trainer, whose parser takes ``False`` behind such flags.
    """
    kept = {
        KnobName.PRECISION: recipe.precision == config.recipe.precision or recipe.precision.is_autocast,
        KnobName.ACTIVATION_CHECKPOINTING: recipe.activation_checkpointing,
    }
    knobs = (config.knob(name) for name, is_kept in kept.items() if not is_kept)
    problems = (_stuck_switch(config, each) for each in knobs if each is not None)
    return next((each for each in problems if each is not None), None)


def _stuck_switch(config: UserConfig, knob: Knob) -> str | None:
    text, language = config.document.source.text, config.document.language
    flag = switch_named(text, knob.key) if language is SHELL else None
    if flag is not None:
        return f"{flag} is a switch, which a value cannot turn off"
    is_on = language is ARGUMENTS and knob.value is True
    if is_on and switch_in(text, knob.key, value=False) is None and not is_told_by_a_word(text, knob.key):
        where = "in the command" if knob.key in config.said else "by default"
        return f"{flag_in(text, knob.key)} is on {where}, and no flag turns it off"
    return None


def _precision_obstacle(config: UserConfig, precision: Precision) -> str | None:
    holders = [each for each in (config, *config.companions) if each.knob(KnobName.PRECISION) is not None]
    silent = next((each for each in holders if not _precision_values(each, precision)), None)
    knob = None if silent is None else silent.knob(KnobName.PRECISION)
    if knob is None:
        return None
    shown = f"{knob.key}={knob.value!r}"
    return f"{shown} has no way to say {precision} (a second key for the type can be declared with --map amp_dtype=KEY)"


def _precision_values(config: UserConfig, precision: Precision) -> dict[str, Any]:
    """Return key -> value that sets a precision; empty where the config has no word for it."""
    knob, dtype = config.knob(KnobName.PRECISION), config.knob(KnobName.AMP_DTYPE)
    if knob is None:
        return {}
    if isinstance(knob.value, bool) and dtype is not None and precision.is_autocast:
        word = spelled(precision, like=dtype.value, choices=_choices(config, dtype))
        return {} if word is None else {knob.key: True, dtype.key: word}
    word = spelled(precision, like=knob.value, key=knob.key, choices=_choices(config, knob))
    return {} if word is None else {knob.key: word}


def _choices(config: UserConfig, knob: Knob) -> tuple[Any, ...]:
    return config.document.language.choices(config.document.source.text, knob.key)


def single_assignments(config: UserConfig, change: RecipeChange, *, names: Sequence[KnobName]) -> list[Assignment]:
    """Return the new values of the single-valued knobs, in the config's order."""
    found = [
        assigned(change, knob.name, knob.key, value)
        for knob in config.knobs
        if knob.name in names and (value := _new_value(config, change, knob)) is not None
    ]
    if KnobName.PRECISION in names and change.recipe.precision != config.recipe.precision:
        values = _precision_values(config, change.recipe.precision)
        found += [assigned(change, KnobName.PRECISION, key, value) for key, value in values.items()]
    return found


def _new_value(config: UserConfig, change: RecipeChange, knob: Knob) -> Any:
    recipe, original = change.recipe, config.original_value(knob.key, knob.value)
    if knob.name is KnobName.ITERATIONS:
        return scaled_counts(original, change.iteration_factor, like=knob.value)
    if knob.name is KnobName.OPTIMIZER_STEPS:
        return scaled_counts(original, change.optimizer_step_factor, like=knob.value)
    is_first_rate = config.knob(KnobName.LEARNING_RATE) == knob
    if knob.name is KnobName.MIN_LEARNING_RATE or (knob.name is KnobName.LEARNING_RATE and not is_first_rate):
        return same_kind(float(original) * rate_ratio(config, recipe), knob.value)
    if knob.name is KnobName.LEARNING_RATE:
        return None if recipe.learning_rate is None else same_kind(recipe.learning_rate, knob.value)
    if knob.name is KnobName.ACTIVATION_CHECKPOINTING:  # a word such as "offload" stays where the meaning does
        checkpointing = recipe.activation_checkpointing
        return knob.value if bool(knob.value) == checkpointing else checkpointing
    total = config.knob(KnobName.GLOBAL_BATCH_SIZE)
    is_of_all = total is not None and total.key == knob.key  # whose new value the key has
    return {
        KnobName.MICRO_BATCH_SIZE: None if is_of_all else recipe.micro_batch_size,
        KnobName.ACCUMULATION_STEPS: recipe.accumulation_steps,
        KnobName.GLOBAL_BATCH_SIZE: recipe.global_batch_size,
    }.get(knob.name)


def assigned(change: RecipeChange, name: KnobName, key: str, value: Any) -> Assignment:
    """Return the assignment of a knob's new value, with the reason that the change gives for it."""
    return Assignment(key=key, value=value, reason=reason_for(change, name))


def additions(config: UserConfig, change: RecipeChange, keys: Mapping[KnobName, str]) -> list[Assignment]:
    """Return what a change adds to a config that does not set it.

    Args:
        config: the config.
        change: what is wanted; parts of the recipe that stay as they are need no key.
        keys: part of the recipe -> the key at which programs of this ecosystem take it.
    """
    missing = without_key(config, change.recipe, keys)
    return [assigned(change, name, keys[name], after) for name, (_, after) in missing.items()]


def rate_ratio(config: UserConfig, recipe: Recipe) -> float:
    """Return the new learning rate over the one before memplan first changed the config; 1 where either is unknown."""
    before = config.first_recipe.learning_rate
    return 1.0 if before is None or recipe.learning_rate is None else recipe.learning_rate / before


def same_kind(value: float, like: Any) -> Any:
    """Return a number without float noise, as an int where the value it replaces is one and nothing is lost.

    A value that is equal already stays as it is, even as text.
    """
    if _says(like, value):
        return like
    value = without_noise(value)
    return int(value) if isinstance(like, int) and value.is_integer() else value


def _says(said: Any, value: float) -> bool:
    try:
        return not isinstance(said, bool) and math.isclose(value, float(said), rel_tol=_SAME)
    except (TypeError, ValueError):
        return False


def scaled_counts(original: Any, factor: Fraction, *, like: Any) -> Any:
    """Scale a count, or a list of counts, to whole numbers of at least 1; what is not positive stays as it is."""
    if isinstance(original, list | tuple):
        scaled = [scaled_counts(each, factor, like=each) for each in original]
        return tuple(scaled) if isinstance(like, tuple) else scaled
    return type(original)(max(1, round(original * factor))) if is_number_of_steps(original) else original


def reason_for(change: RecipeChange, name: KnobName) -> str:
    """Return why a knob changes, in the planner's words where it gave any."""
    return change.reasons.get(name) or _DEFAULT_REASONS[name]


_DEFAULT_REASONS = {
    KnobName.MICRO_BATCH_SIZE: "uses the device's memory",
    KnobName.ACCUMULATION_STEPS: "holds the global batch",
    KnobName.GLOBAL_BATCH_SIZE: "samples of an optimizer step over all replicas",
    KnobName.PRECISION: "compared by live trials",
    KnobName.AMP_DTYPE: "compared by live trials",
    KnobName.LEARNING_RATE: "follows the global batch",
    KnobName.MIN_LEARNING_RATE: "follows the learning rate",
    KnobName.ACTIVATION_CHECKPOINTING: "trades memory for time",
    KnobName.ITERATIONS: "keeps the number of samples seen",
    KnobName.OPTIMIZER_STEPS: "keeps the number of samples seen",
    KnobName.LOADER_WORKERS: "as many as processors and host memory carry",
    KnobName.PIN_MEMORY: "copies to the card need not be waited for",
    KnobName.PREFETCH_FACTOR: "held batches fit in host memory",
    KnobName.PERSISTENT_WORKERS: "workers are started once, or there are none",
}
