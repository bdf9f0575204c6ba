"""Knobs that are one value at one dotted key: read them, and say what a change sets them to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from memplan.configs.ecosystem import Assignment, KnobKeys
from memplan.configs.keys import contains, get, is_aside, keys_named
from memplan.configs.languages.literals import without_noise
from memplan.configs.languages.syntaxes import ARGUMENTS
from memplan.configs.precision_words import precision_of, spelled
from memplan.configs.user_config import Knob, KnobName, RecipeChange, UserConfig
from memplan.errors import ConfigError
from memplan.recipe import Precision, Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from memplan.configs.documents import Document

# The knobs that a recipe is made of, as far as configs hold them.
RECIPE_KNOBS = (
    KnobName.MICRO_BATCH_SIZE,
    KnobName.ACCUMULATION_STEPS,
    KnobName.PRECISION,
    KnobName.LEARNING_RATE,
    KnobName.ACTIVATION_CHECKPOINTING,
)
_SAME = 1e-12  # relative; nearer numbers differ by floating-point noise alone
_WIDEST_VALUE = 80
_MOST_NAMED = 3


def keys_in(values: Mapping[str, Any], keys: KnobKeys) -> KnobKeys:
    """Return those of an ecosystem's keys that a config sets."""
    return {name: tuple(each for each in found if contains(values, each)) for name, found in keys.items()}


def is_count(value: Any) -> bool:
    """Say whether a value counts something: a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _first_value(document: Document, keys: KnobKeys, name: KnobName) -> Any:
    """Return the value of a knob's first key, or None where the config has no such knob."""
    return get(document.values, keys[name][0]) if keys.get(name) else None


def shown(value: Any) -> str:
    """Return a value as it is shown in a message: not longer than a line has room for."""
    text = repr(value)
    return text if len(text) <= _WIDEST_VALUE else f"{text[:_WIDEST_VALUE]}…"


def count_at(document: Document, key: str) -> int:
    """Return a whole number of at least 1 from the config.

    Raises:
        ConfigError: the value is something else.
    """
    value = get(document.values, key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    _require_said(document, key, value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{key}={shown(value)} must be a whole number of at least 1", where=str(document.path))
    return value


def rate_at(document: Document, key: str) -> float | None:
    """Return a positive number from the config, also one that is written as text; None where it is unset.

    Raises:
        ConfigError: the value is something else.
    """
    value = get(document.values, key)
    if value is None:
        return None
    _require_said(document, key, value)
    try:
        rate = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    except ValueError:
        rate = 0.0
    if not rate > 0 or rate == float("inf"):
        raise ConfigError(f"{key}={shown(value)} must be a number above 0", where=str(document.path))
    return rate


def _require_said(document: Document, key: str, value: Any) -> None:
    """Refuse a value that only running the file would tell.

    Raises:
        ConfigError: it is such a value.
    """
    if not isinstance(value, str) or "$" not in value:
        return
    text, location = document.source.text, document.syntax.locate(document.source.text, key)
    missing, lines = document.syntax.environment_behind(text, key), document.syntax.lines_behind(text, key)
    what, hint = "worked out from what the file does not say", f"write the number in place of {value}"
    if missing:
        hint = f"set {', '.join(missing)} in the environment as for the training"
    elif lines:
        more = " and more" if len(lines) > _MOST_NAMED else ""
        places = f"line{'s' if len(lines) > 1 else ''} {', '.join(str(each) for each in lines[:_MOST_NAMED])}{more}"
        what = f"given its value at {places}, in a function, under a condition or more than once"
    raise ConfigError(
        f"{key}={shown(value)} is {what}",
        where=str(document.path) if location is None else f"{document.path}:{location.line}",
        hint=hint,
    )


def recipe_from(document: Document, keys: KnobKeys, *, precision: Precision, accumulation_steps: int) -> Recipe:
    """Build a recipe from the single-valued knobs and what the ecosystem says of precision and accumulation.

    Raises:
        ConfigError: there is no micro-batch size, or a value is out of range.
    """
    if not keys.get(KnobName.MICRO_BATCH_SIZE):
        raise ConfigError(
            "the config sets no micro-batch size that memplan knows",
            where=str(document.path),
            hint=_where_the_batch_may_be(document),
        )
    rate_keys = keys.get(KnobName.LEARNING_RATE, ())
    return Recipe(
        micro_batch_size=count_at(document, keys[KnobName.MICRO_BATCH_SIZE][0]),
        accumulation_steps=accumulation_steps,
        precision=precision,
        learning_rate=rate_at(document, rate_keys[0]) if rate_keys else None,
        activation_checkpointing=bool(_first_value(document, keys, KnobName.ACTIVATION_CHECKPOINTING)),
    )


def _where_the_batch_may_be(document: Document) -> str:
    """Say what to do where no key is known to hold the micro-batch; keys that speak of a training batch are named."""
    named = keys_named(document.values, lambda name: "batch" in name.lower() and "base" not in name.lower())
    counts = [each for each in named if is_count(get(document.values, each)) and not is_aside(each)]
    if not counts:
        is_script = document.syntax is ARGUMENTS
        made = "have the script take it as an argument, such as --batch-size" if is_script else "set it in the config"
        return f"{made}, and name it with --map micro_batch_size=KEY; memplan estimate needs none with --batch-size"
    return f"name its key with --map micro_batch_size=KEY, such as {' or '.join(counts[:_MOST_NAMED])}"


def declared_precision(document: Document, keys: KnobKeys) -> Precision:
    """Return the precision that the mapped knobs set; fp32 where none is mapped.

    Raises:
        ConfigError: the value is not a precision memplan knows.
    """
    value = _first_value(document, keys, KnobName.PRECISION)
    dtype = _first_value(document, keys, KnobName.AMP_DTYPE)
    found = precision_of(value, amp_dtype=dtype)
    if found is None:
        raise ConfigError(
            f"{keys[KnobName.PRECISION][0]}={shown(value)} is not a precision memplan knows",
            where=str(document.path),
            hint="use true or false, or a word such as fp32, fp16, bf16",
        )
    return found


def declared_accumulation(document: Document, keys: KnobKeys) -> int:
    """Return the accumulation steps that the mapped knob sets; 1 where none is mapped.

    Raises:
        ConfigError: the value is not a whole number of at least 1.
    """
    found = keys.get(KnobName.ACCUMULATION_STEPS)
    return count_at(document, found[0]) if found else 1


def declared_recipe(document: Document, keys: KnobKeys) -> Recipe:
    """Build a recipe whose every part is one value at one key; fp32 and no accumulation where the config is silent.

    Raises:
        ConfigError: there is no micro-batch size, or a value is out of range.
    """
    return recipe_from(
        document,
        keys,
        precision=declared_precision(document, keys),
        accumulation_steps=declared_accumulation(document, keys),
    )


def obstacle_of_single_values(config: UserConfig, recipe: Recipe, *, names: Sequence[KnobName]) -> str | None:
    """Return why the mapped knobs cannot express a recipe, or None."""
    current = config.recipe
    wanted = {
        KnobName.MICRO_BATCH_SIZE: (current.micro_batch_size, recipe.micro_batch_size),
        KnobName.ACCUMULATION_STEPS: (current.accumulation_steps, recipe.accumulation_steps),
        KnobName.PRECISION: (current.precision, recipe.precision),
        KnobName.LEARNING_RATE: (current.learning_rate, recipe.learning_rate or current.learning_rate),
        KnobName.ACTIVATION_CHECKPOINTING: (current.activation_checkpointing, recipe.activation_checkpointing),
    }
    for name in names:
        before, after = wanted[name]
        if before != after and config.knob(name) is None and not config.is_set_beside(name):
            what = f"the config has no key for {name}, so {before} cannot become {after}"
            return f"{what} (declare one with --map {name}=KEY)"
    if recipe.world_size != current.world_size:
        return "the number of replicas is set by the launcher, not by the config"
    if KnobName.PRECISION in names and current.precision != recipe.precision:
        return _precision_obstacle(config, recipe.precision)
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
    """Return key -> value that sets a precision; empty where it cannot be said."""
    knob, dtype = config.knob(KnobName.PRECISION), config.knob(KnobName.AMP_DTYPE)
    if knob is None:
        return {}
    if isinstance(knob.value, bool) and dtype is not None and precision.is_autocast:
        word = spelled(precision, like=dtype.value)
        return {} if word is None else {knob.key: True, dtype.key: word}
    word = spelled(precision, like=knob.value, key=knob.key)
    return {} if word is None else {knob.key: word}


def single_assignments(config: UserConfig, change: RecipeChange, *, names: Sequence[KnobName]) -> list[Assignment]:
    """Return what a change sets the single-valued knobs to, in the order they stand in the config."""
    found = [
        Assignment(key=knob.key, value=value, reason=reason_for(change, knob.name))
        for knob in config.knobs
        if knob.name in names and (value := _new_value(config, change, knob)) is not None
    ]
    if KnobName.PRECISION in names and change.recipe.precision != config.recipe.precision:
        reason = reason_for(change, KnobName.PRECISION)
        values = _precision_values(config, change.recipe.precision)
        found += [Assignment(key=key, value=value, reason=reason) for key, value in values.items()]
    return found


def _new_value(config: UserConfig, change: RecipeChange, knob: Knob) -> Any:
    recipe, original = change.recipe, config.original_value(knob.key, knob.value)
    if knob.name is KnobName.ITERATIONS:
        return scaled_counts(original, change.iteration_factor, like=knob.value)
    if knob.name is KnobName.OPTIMIZER_STEPS:
        return scaled_counts(original, change.optimizer_step_factor, like=knob.value)
    if knob.name is KnobName.MIN_LEARNING_RATE:
        return same_kind(float(original) * rate_ratio(config, recipe), knob.value)
    if knob.name is KnobName.LEARNING_RATE:
        return None if recipe.learning_rate is None else same_kind(recipe.learning_rate, knob.value)
    if knob.name is KnobName.ACTIVATION_CHECKPOINTING:  # a word such as "offload" stays where the meaning does
        checkpointing = recipe.activation_checkpointing
        return knob.value if bool(knob.value) == checkpointing else checkpointing
    return {
        KnobName.MICRO_BATCH_SIZE: recipe.micro_batch_size,
        KnobName.ACCUMULATION_STEPS: recipe.accumulation_steps,
    }.get(knob.name)


def rate_ratio(config: UserConfig, recipe: Recipe) -> float:
    """Return the new learning rate over the one before memplan first changed the config; 1 where either is unknown."""
    before = (config.original.recipe if config.original else config.recipe).learning_rate
    return 1.0 if before is None or recipe.learning_rate is None else recipe.learning_rate / before


def same_kind(value: float, like: Any) -> Any:
    """Return a number without float noise, as an int where the value it replaces is one and nothing is lost.

    What says the same already stays as it is, also where it is text.
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
    if isinstance(original, bool) or not isinstance(original, int) or original <= 0:
        return original
    return max(1, round(original * factor))


def reason_for(change: RecipeChange, name: KnobName) -> str:
    """Return why a knob changes, in the planner's words where it gave any."""
    schedule = name in (KnobName.ITERATIONS, KnobName.OPTIMIZER_STEPS)
    given = change.reasons.get(name) or (change.reasons.get("schedule") if schedule else None)
    return given or _DEFAULT_REASONS[name]


_DEFAULT_REASONS = {
    KnobName.MICRO_BATCH_SIZE: "uses the device's memory",
    KnobName.ACCUMULATION_STEPS: "holds the global batch",
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
