"""Reading of knobs that are one value at one dotted key; their new values are in ``knob_changes``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan.configs.keys import contains, get, is_count, is_outside_training, leaves, lookup
from memplan.configs.languages.registry import ARGUMENTS, PYTHON
from memplan.configs.precision_words import precision_of
from memplan.configs.user_config import Knob, KnobName
from memplan.errors import ConfigError
from memplan.recipe import Precision, Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys

# The knobs that a recipe is made of, as far as configs hold them.
RECIPE_KNOBS = (
    KnobName.MICRO_BATCH_SIZE,
    KnobName.ACCUMULATION_STEPS,
    KnobName.PRECISION,
    KnobName.LEARNING_RATE,
    KnobName.ACTIVATION_CHECKPOINTING,
)
LENGTH_KNOBS = (KnobName.ITERATIONS, KnobName.OPTIMIZER_STEPS)
_WIDEST_VALUE = 80
_MOST_NAMED = 3
_SHORT_NAMES = ("b", "bs", "bsz")
_WHERE_TO_SET = {
    ARGUMENTS.name: "have the script take it as an argument, such as --batch-size",
    PYTHON.name: "assign it at the top of the file or of a class",
}


def keys_in(values: Mapping[str, Any], keys: KnobKeys) -> KnobKeys:
    """Return those of an ecosystem's keys that a config sets."""
    return {name: tuple(each for each in found if contains(values, each)) for name, found in keys.items()}


def knobs_at(document: Document, keys: KnobKeys) -> tuple[Knob, ...]:
    """Return a config's knobs with their values, in the order of their keys."""
    pairs = ((name, key) for name, found in keys.items() for key in found)
    return tuple(Knob(name=name, key=key, value=lookup(document.values, key)) for name, key in pairs)


def _first_value(document: Document, keys: KnobKeys, name: KnobName) -> Any:
    """Return the value of a knob's first key, or None where the config has no such knob."""
    return get(document.values, keys[name][0]) if keys.get(name) else None


def shown(value: Any) -> str:
    """Return a value as shown in a message: no longer than fits on a line."""
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
    if not is_count(value):
        raise ConfigError(f"{key}={shown(value)} must be a whole number of at least 1", where=_place_of(document, key))
    return int(value)


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
        raise ConfigError(f"{key}={shown(value)} must be a number above 0", where=_place_of(document, key))
    return rate


def _place_of(document: Document, key: str) -> str:
    """Return the file and, where it is written there, the line of a key."""
    location = document.language.locate(document.source.text, key)
    return str(document.path) if location is None else f"{document.path}:{location.line}"


def _require_said(document: Document, key: str, value: Any) -> None:
    """Refuse a value that only running the file would determine.

    Raises:
        ConfigError: it is such a value.
    """
    if not isinstance(value, str) or "$" not in value:
        return
    text = document.source.text
    missing, lines = document.language.environment_behind(text, key), document.language.lines_behind(text, key)
    what, hint = "worked out from what the file does not say", f"write the number in place of {value}"
    if missing:
        hint = f"set {', '.join(missing)} in the environment as for the training"
    elif lines:
        more = " and more" if len(lines) > _MOST_NAMED else ""
        places = f"line{'s' if len(lines) > 1 else ''} {', '.join(str(each) for each in lines[:_MOST_NAMED])}{more}"
        what = f"given its value at {places}, in a function, under a condition or more than once"
    raise ConfigError(f"{key}={shown(value)} is {what}", where=_place_of(document, key), hint=hint)


def declared_recipe(document: Document, keys: KnobKeys, *, precision: Precision = Precision.FP32) -> Recipe:
    """Build a recipe whose every part is one value at one key, without accumulation where the config is silent.

    Args:
        document: the config.
        keys: where its knobs are.
        precision: used where no key is mapped for it.

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
    micro_batch_size = count_at(document, keys[KnobName.MICRO_BATCH_SIZE][0])
    return Recipe(
        micro_batch_size=micro_batch_size,
        accumulation_steps=_declared_accumulation(document, keys, micro_batch_size),
        precision=declared_precision(document, keys) if keys.get(KnobName.PRECISION) else precision,
        learning_rate=rate_at(document, rate_keys[0]) if rate_keys else None,
        activation_checkpointing=bool(_first_value(document, keys, KnobName.ACTIVATION_CHECKPOINTING)),
    )


def _where_the_batch_may_be(document: Document) -> str:
    """Say what to do where no key is known to hold the micro-batch."""
    if found := _likely_batch_sizes(document):
        if "global" in found[0].lower():
            both = f"--map micro_batch_size={found[0]} --map global_batch_size={found[0]}"
            return f"say that {found[0]} is the batch of all replicas, if it is, with {both}"
        return f"name its key with --map micro_batch_size=KEY, such as {' or '.join(found[:_MOST_NAMED])}"
    made = _WHERE_TO_SET.get(document.language.name, "set it in the config")
    return f"{made}, and name it with --map micro_batch_size=KEY; memplan estimate needs none with --batch-size"


def _likely_batch_sizes(document: Document) -> list[str]:
    """Return the keys of numbers that look like the size of a training batch; refuse such a key whose value is none."""
    named = [each for each in leaves(document.values) if _may_be_batch(each)]
    counts = [each for each in named if is_count(get(document.values, each))]
    if not counts:
        counts = [each for each in named if "batch_size" in each.lower()]
        for each in counts:
            count_at(document, each)
    return counts or [each for each in leaves(document.values) if _is_short_count(document, each)]


def _is_short_count(document: Document, key: str) -> bool:
    """Whether a key has one of the short names that scripts give to the size of a batch."""
    is_short = key.rpartition(".")[2].lower() in _SHORT_NAMES
    return is_short and is_count(get(document.values, key)) and not is_outside_training(key)


def _may_be_batch(key: str) -> bool:
    """Whether a dotted key looks like that of a training batch's size."""
    name = key.rpartition(".")[2].lower()
    is_batch = "batch" in name and "base" not in name
    return is_batch and not is_outside_training(f"{key}.{name.replace('_', '.')}.")


def declared_precision(document: Document, keys: KnobKeys) -> Precision:
    """Return the precision that the mapped knobs set; fp32 where none is mapped.

    Raises:
        ConfigError: the value is not a precision memplan knows.
    """
    value = _first_value(document, keys, KnobName.PRECISION)
    dtype = _first_value(document, keys, KnobName.AMP_DTYPE)
    found = precision_of(value, amp_dtype=dtype, key=keys[KnobName.PRECISION][0])
    if found is None:
        raise ConfigError(
            f"{keys[KnobName.PRECISION][0]}={shown(value)} is not a precision memplan knows",
            where=str(document.path),
            hint="use true or false, or a word such as fp32, fp16, bf16",
        )
    return found


def _declared_accumulation(document: Document, keys: KnobKeys, micro_batch_size: int) -> int:
    """Return the accumulation of one replica, which follows from the batch of an optimizer step where that is known."""
    if total_keys := keys.get(KnobName.GLOBAL_BATCH_SIZE):
        total = count_at(document, total_keys[0])
        if total % micro_batch_size:
            what = f"{total_keys[0]}={total} is no multiple of the micro-batch of {micro_batch_size}"
            raise ConfigError(what, where=str(document.path), hint="make it one")
        return total // micro_batch_size
    found = keys.get(KnobName.ACCUMULATION_STEPS)
    return count_at(document, found[0]) if found else 1
