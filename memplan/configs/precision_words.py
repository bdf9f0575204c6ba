"""How configs spell precisions: booleans, and words of several vocabularies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Collection

LIGHTNING_WORDS = {  # of Trainer(precision=...), from Lightning 2 on
    Precision.FP32: "32-true",
    Precision.FP16: "16-mixed",
    Precision.BF16: "bf16-mixed",
    Precision.FP16_TRUE: "16-true",
    Precision.BF16_TRUE: "bf16-true",
}
ACCELERATE_WORDS = {  # of Accelerator(mixed_precision=...), which takes fp8 besides
    Precision.FP32: "no",
    Precision.FP16: "fp16",
    Precision.BF16: "bf16",
}
_VOCABULARIES: tuple[dict[Precision, str], ...] = (
    LIGHTNING_WORDS,
    {
        Precision.FP32: "fp32",
        Precision.TF32: "tf32",
        Precision.FP16: "fp16",
        Precision.BF16: "bf16",
        Precision.FP16_TRUE: "fp16-true",
        Precision.BF16_TRUE: "bf16-true",
    },
    {Precision.FP32: "float32", Precision.TF32: "tfloat32", Precision.FP16: "float16", Precision.BF16: "bfloat16"},
    {Precision.FP32: "torch.float32", Precision.FP16: "torch.float16", Precision.BF16: "torch.bfloat16"},
    {Precision.FP32: "32", Precision.FP16: "16", Precision.BF16: "bf16"},
    ACCELERATE_WORDS,
    {Precision.FP32: "none", Precision.FP16: "fp16", Precision.BF16: "bf16"},
    {Precision.FP32: "full", Precision.FP16: "half", Precision.BF16: "bf16"},
    {Precision.FP32: "off", Precision.FP16: "fp16", Precision.BF16: "bf16"},
    {Precision.FP32: "fp32", Precision.FP16: "amp_fp16", Precision.BF16: "amp_bf16"},  # of Composer's Trainer
    {
        Precision.FP32: "fp32",
        Precision.FP16: "amp",
        Precision.BF16: "amp_bf16",
        Precision.FP16_TRUE: "pure_fp16",
        Precision.BF16_TRUE: "pure_bf16",
    },  # of OpenCLIP, whose fp16 and bf16 leave norms in fp32, without autocast
    {Precision.FP32: "fp32", Precision.FP16: "amp", Precision.BF16: "amp_bfloat16"},
)
_OF_KEYS = {"mixed_precision": ACCELERATE_WORDS}


def switched_on(key: str) -> Precision:
    """Return what a key that is only on or off switches on, by its name; mixed precision of no other name is fp16."""
    name = key.rpartition(".")[2].lower()
    return Precision.BF16 if "bf16" in name or "bfloat16" in name else Precision.FP16


def precision_of(value: Any, *, amp_dtype: Any = None, key: str = "") -> Precision | None:
    """Return the precision a config value means; None where it is not understood.

    Args:
        value: a boolean (mixed precision on or off), a word, or a number of bits.
        amp_dtype: value of a second knob that names the type of mixed precision; without it the key's name says it.
        key: where the value is.
    """
    if value is None or value is False:
        return Precision.FP32
    if value is True:
        named = None if amp_dtype is None else precision_of(amp_dtype)
        return switched_on(key) if named is None else named
    text = str(value).lower()
    return next((each for words in _VOCABULARIES for each, word in words.items() if word == text), None)


def spelled(precision: Precision, *, like: Any, key: str = "", choices: Collection[Any] = ()) -> Any:
    """Return how a precision is written in the vocabulary of the value it replaces; None where that has no word.

    Args:
        precision: what to write.
        like: the value it replaces.
        key: where the value is, which distinguishes some vocabularies.
        choices: the values that are taken there; none where that is not known.
    """
    if like is None or isinstance(like, bool):
        return {Precision.FP32: False, switched_on(key): True}.get(precision)
    text = str(like)
    own = _OF_KEYS.get(key.rpartition(".")[2], {})
    for words in (own,) if text.lower() in own.values() else _VOCABULARIES:
        if text.lower() in words.values() and precision in words:
            word = words[precision].upper() if text.isupper() and not text.isdigit() else words[precision]
            value = int(word) if isinstance(like, int) and word.isdigit() else word
            if not choices or value in choices:
                return value
    return None
