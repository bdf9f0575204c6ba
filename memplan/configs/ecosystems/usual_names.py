"""The names that training scripts and plain configs usually give the knobs of a step, in plain configs in any case."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from memplan.configs.ecosystems.ecosystem import TORCH_LOADER
from memplan.configs.keys import (
    followed,
    get,
    is_aside,
    is_called,
    is_count,
    is_number_of_steps,
    is_outside_training,
    keys_named,
)
from memplan.configs.precision_words import precision_of
from memplan.configs.user_config import KnobName
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys

MAE_STEPS = "accum_iter"  # MAE and its descendants
# For each knob, the most specific name first.
USUAL_NAMES: Mapping[KnobName, tuple[str, ...]] = {
    KnobName.MICRO_BATCH_SIZE: ("per_device_train_batch_size", "micro_batch_size", "batch_size", "train_batch_size"),
    KnobName.ACCUMULATION_STEPS: (
        MAE_STEPS,
        "gradient_accumulation_steps",
        "grad_accum_steps",
        "grad_accumulation_factor",  # SpeechBrain
        "accum_grad",  # ESPnet, WeNet
        "accumulation_steps",
        "accum_steps",
        "accumulate_grad_batches",
        "grad_accumulation_steps",
        "grad_acc_steps",
        "accumulate_steps",
        "gradient_accumulate_every",  # lucidrains
        "accum_grad_iters",  # LAVIS
        "gradient_accumulation",
        "grad_accum",
    ),
    KnobName.GLOBAL_BATCH_SIZE: ("global_batch_size", "global_train_batch_size"),
    KnobName.LEARNING_RATE: ("lr", "learning_rate"),
    KnobName.PRECISION: ("precision", "mixed_precision", "amp", "use_amp"),
    KnobName.AMP_DTYPE: ("amp_dtype",),
    KnobName.ACTIVATION_CHECKPOINTING: (
        "grad_checkpointing",
        "gradient_checkpointing",
        "activation_checkpointing",
        "use_checkpoint",
    ),
}
_PRECISION_NAMES = ("precision", "mixed_precision")
# Lengths that scripts usually count in optimizer steps.
STEP_LENGTHS = (
    "max_train_steps",
    "max_steps",
    "warmup_steps",
    "num_warmup_steps",
    "lr_warmup_steps",
    "save_steps",
    "checkpointing_steps",
    "eval_steps",
    "validation_steps",
    "logging_steps",
)
_ITERATIONS = re.compile(
    r"(max|num|total|train|warmup|lr_warmup|lr_decay)_iter(ation)?s?"
    r"|(total|train|num_train|num_training|decay|lr_decay)_steps"
    r"|(steps|iters|iterations)_per_epoch"
)
# Learning rates of parts of a model or of a schedule; not what only scales one, such as ``lr_decay``.
_RATE = re.compile(
    r"([a-z0-9]+_)*(lr|learning_rate)(_(backbone|encoder|decoder|head|min|max|base|init|start|peak|end|final))?"
    r"|eta_min"
)
# Also names that others give to something else: Caffe's iter_size, and fairseq's update_freq.
_ACCUMULATION = re.compile(r".*accum.*|(.+_)?acc_steps|(grad|gradient)_acc|iter_size|update_freq(uency)?")
# May be the precision of the training, of one part, or of the weights.
_SWITCH = re.compile(r"(use_|enable_)?(amp|fp16|bf16|half|mixed_precision|autocast)|(amp_|torch_)?dtype")


def declared_without_value(document: Document, name: KnobName) -> str | None:
    """Return the usual name of a knob that a file has at its top level and gives no value to; None for none."""
    text, values = document.source.text, document.values
    found = (each for each in USUAL_NAMES[name] if values.get(each) is None)
    return next((each for each in found if document.language.locate(text, each) is not None), None)


def remark_on_lengths(
    values: Mapping[str, Any], keys: KnobKeys, *, written: Callable[[str], str] = str
) -> Iterator[str]:
    """Name the lengths that may follow the batch and are left alone, and how to say what they count, if any.

    Args:
        values: the effective values.
        keys: those of the knobs, lengths that are presumed or declared to count something included.
        written: key -> how the user writes it, such as a flag.
    """
    known = {key for name in (KnobName.ITERATIONS, KnobName.OPTIMIZER_STEPS) for key in keys.get(name, ())}
    found = [key for key in keys_named(values, is_length) if key not in known and not is_outside_training(key)]
    if unclear := [key for key in found if is_number_of_steps(get(values, key))]:
        named = ",".join(unclear)
        hint = f"--map iterations={named} for forward/backward passes, or --map optimizer_steps={named}"
        yield f"{listed(map(written, unclear))} left alone, as programs differ in what they count: {hint}"


def remark_on_accumulation(
    values: Mapping[str, Any], keys: KnobKeys, *, written: Callable[[str], str] = str
) -> Iterator[str]:
    """Name what may be accumulation where none is known, and how to have it taken for that.

    Args:
        values: the effective values.
        keys: those of the knobs.
        written: key -> how the user writes it, such as a flag.
    """
    if any(keys.get(each) for each in (KnobName.ACCUMULATION_STEPS, KnobName.GLOBAL_BATCH_SIZE)):
        return
    for key in keys_named(values, _is_accumulation):
        count = get(values, key)
        if is_count(count) and count > 1 and not is_outside_training(key):
            hint = f"--map accumulation_steps={key} says that it does"
            yield f"{written(key)}={count} is not taken as accumulation, which it may mean: {hint}"


def remark_on_rates(values: Mapping[str, Any], keys: KnobKeys, *, written: Callable[[str], str] = str) -> Iterator[str]:
    """Name the learning rates beside the one that is known, which are left alone, and how to have them follow it.

    Args:
        values: the effective values.
        keys: those of the knobs.
        written: key -> how the user writes it, such as a flag.
    """
    rates, floors = (keys.get(each, ()) for each in (KnobName.LEARNING_RATE, KnobName.MIN_LEARNING_RATE))
    found = [each for each in _rate_keys(values) if each not in (*rates, *floors)] if rates else []
    if found:
        hint = f"--map learning_rate={','.join((*rates, *found))} has {'them' if len(found) > 1 else 'it'} follow"
        yield f"{listed(map(written, found))} left alone where {written(rates[0])} changes: {hint}"


def remark_on_precisions(values: Mapping[str, Any], keys: KnobKeys) -> Iterator[str]:
    """Name what may switch on a precision where none is known, and how to have it taken for that."""
    if keys.get(KnobName.PRECISION):
        return
    yield from remark_on_unknown_words(values)
    named = keys_named(values, lambda name: bool(_SWITCH.fullmatch(name.lower())))
    said = {each: precision_of(get(values, each), key=each) for each in named if not is_outside_training(each)}
    for key, precision in said.items():
        if precision not in (None, Precision.FP32):
            hint = f"--map precision={key} says that it is the training's"
            yield f"{key}={get(values, key)} is not taken as the precision, of which it is only a common name: {hint}"


def remark_on_unknown_words(values: Mapping[str, Any], *, written: Callable[[str], str] = str) -> Iterator[str]:
    """Name what says the precision in a word that memplan does not know.

    Args:
        values: the effective values, of which no knob holds the precision.
        written: key -> how the user writes it, such as a flag.
    """
    for key in keys_named(values, lambda name: name.lower() in _PRECISION_NAMES):
        word = get(values, key)
        if isinstance(word, str) and precision_of(word) is None and not is_outside_training(key):
            yield (
                f"{written(key)}={word} is no precision that memplan knows: what follows is for fp32, unless "
                "--precision names the nearest of fp32, tf32, fp16, bf16, fp16-true and bf16-true"
            )


def _rate_keys(values: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of learning rates, also within lists."""
    members = enumerate(values) if isinstance(values, list | tuple) else values.items()
    for name, value in members:
        key = f"{prefix}{name}"
        if isinstance(value, Mapping | list | tuple):
            yield from _rate_keys(value, f"{key}.")
        elif isinstance(value, float) and value > 0 and _is_rate_of_training(key):
            yield key


def _is_rate_of_training(key: str) -> bool:
    return _RATE.fullmatch(key.rpartition(".")[2].lower()) is not None and not is_outside_training(key)


def _is_accumulation(name: str) -> bool:
    """Whether a name may be that of accumulation in training."""
    return _ACCUMULATION.fullmatch(name.lower()) is not None and not is_aside(name)


def is_length(key: str) -> bool:
    """Whether a key's last part is the name of a length in optimizer steps or iterations."""
    name = key.rpartition(".")[2].lower()
    return name in STEP_LENGTHS or _ITERATIONS.fullmatch(name) is not None


def listed(names: Iterable[str]) -> str:
    """Write names as the subject of a sentence, with its verb."""
    subjects = list(names)
    return f"{', '.join(subjects)} {'is' if len(subjects) == 1 else 'are'}"


def unmistakable_keys(values: Mapping[str, Any]) -> dict[KnobName, str]:
    """Return the keys of knobs that occur exactly once under a usual name, outside evaluation, with a fitting value.

    One-word names for precision mean too many things to be taken for it, apart from ``precision`` itself.
    """
    found = {name: _keys_of(values, name) for name in _FITS}
    single = {name: (keys[0],) for name, keys in found.items() if len(keys) == 1}
    return {name: key for name, (key,) in with_one_accumulation(single, values).items()}


def unmistakable_loader_keys(values: Mapping[str, Any]) -> dict[KnobName, tuple[str, ...]]:
    """Return the keys of the data loader's settings that occur exactly once under torch's own names, as for knobs."""
    named = {knob: _training_keys(values, usual) for knob, usual in TORCH_LOADER.items()}
    single = {knob: keys[0] for knob, keys in named.items() if len(keys) == 1}
    return {knob: (key,) for knob, key in single.items() if isinstance(get(values, key), int)}


def with_one_accumulation(keys: KnobKeys, values: Mapping[str, Any]) -> KnobKeys:
    """Return the keys without those of the weaker of the two ways to say accumulation.

    A global batch beside the batch of one device decides, unless a count of steps above 1 is given as well.
    """
    total, steps = keys.get(KnobName.GLOBAL_BATCH_SIZE), keys.get(KnobName.ACCUMULATION_STEPS)
    if not total:
        return keys
    is_beside = bool(keys.get(KnobName.MICRO_BATCH_SIZE)) and is_count(get(values, total[0]))
    decides = is_beside and (not steps or get(values, steps[0]) == 1)
    weaker = KnobName.ACCUMULATION_STEPS if decides else KnobName.GLOBAL_BATCH_SIZE
    return {name: found for name, found in keys.items() if name is not weaker}


def _keys_of(values: Mapping[str, Any], name: KnobName) -> list[str]:
    for usual in USUAL_NAMES[name]:
        if named := _training_keys(values, usual):
            found = list(dict.fromkeys(followed(values, each) for each in named))
            return found if all(_FITS[name](get(values, each)) for each in found) else []
    return []


def _training_keys(values: Mapping[str, Any], usual: str) -> list[str]:
    return [each for each in keys_named(values, lambda name: is_called(name, usual)) if not is_outside_training(each)]


def _is_rate(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and 0 < float(value) < float("inf")
    except (TypeError, ValueError):
        return False


def _is_precision(value: Any) -> bool:
    return isinstance(value, str) and precision_of(value) is not None


_FITS = {
    KnobName.MICRO_BATCH_SIZE: is_count,
    KnobName.ACCUMULATION_STEPS: is_count,
    KnobName.GLOBAL_BATCH_SIZE: is_count,
    KnobName.LEARNING_RATE: _is_rate,
    KnobName.PRECISION: _is_precision,
}
