"""The knobs of one training step, as a value."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import SupportsFloat, SupportsIndex

from memplan.errors import UsageError, hint_on_names


class Precision(StrEnum):
    """Number formats of one training step.

    ``fp16`` and ``bf16`` are autocast with fp32 weights (fp16 with a gradient scaler); ``fp32`` leaves
    torch's flags alone, whose defaults allow TF32 in convolutions; ``tf32`` allows it in matrix products too;
    ``bf16-true`` and ``fp16-true`` keep the weights themselves in half precision.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP16_TRUE = "fp16-true"
    BF16_TRUE = "bf16-true"

    @property
    def is_autocast(self) -> bool:
        """Whether the step runs under ``torch.autocast``."""
        return self in (Precision.FP16, Precision.BF16)


def parse_precision(text: str) -> Precision:
    """Read a precision by its name.

    Raises:
        UsageError: there is no precision of that name.
    """
    try:
        return Precision(str(text).strip().lower())
    except ValueError:
        hint = hint_on_names(str(text).lower(), Precision)
        raise UsageError(f"precision {text!r} is not known", hint=hint) from None


@dataclass(frozen=True, slots=True)
class Recipe:
    """One full setting of the knobs.

    Their order is part of what callers may rely on.

    Args:
        micro_batch_size: samples one device sees in one forward pass, at least 1.
        accumulation_steps: forward/backward passes per optimizer step, at least 1.
        precision: a :class:`Precision`; its name as text is accepted and converted.
        learning_rate: peak learning rate of the optimizer; None where the workload's own is kept.
        activation_checkpointing: whether activations are recomputed in the backward pass.
        world_size: data-parallel replicas, at least 1.

    Raises:
        UsageError: a value is out of range.
    """

    micro_batch_size: int
    accumulation_steps: int = 1
    precision: Precision = Precision.FP32
    learning_rate: float | None = None
    activation_checkpointing: bool = False
    world_size: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", parse_precision(self.precision))
        for name in ("micro_batch_size", "accumulation_steps", "world_size"):
            object.__setattr__(self, name, counted(f"{name}=", getattr(self, name)))
        if self.learning_rate is not None and not _is_rate(self.learning_rate):
            raise UsageError(f"learning_rate={self.learning_rate!r} must be a number above 0")

    def __str__(self) -> str:
        """Write the knobs that shape a step, e.g. ``bf16, 12 x 2`` for micro-batch 12 and two accumulation steps."""
        world = f" x {self.world_size} replicas" if self.world_size > 1 else ""
        checkpointing = ", checkpointed" if self.activation_checkpointing else ""
        return f"{self.precision}, {self.micro_batch_size} x {self.accumulation_steps}{world}{checkpointing}"

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step over all replicas."""
        return self.micro_batch_size * self.accumulation_steps * self.world_size

    def with_micro_batch_size(self, micro_batch_size: int) -> Recipe:
        """Return the same recipe at another micro-batch size."""
        return replace(self, micro_batch_size=micro_batch_size)


def counted(named: str, value: object) -> int:
    """Return a count as Python's own integer: NumPy's are no numbers of JSON.

    Args:
        named: what the error calls it, up to the value.
        value: what a caller gave.

    Raises:
        UsageError: it is no whole number of at least 1.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or operator.index(value) < 1:
        raise UsageError(f"{named}{value!r} must be a whole number of at least 1")
    return operator.index(value)


def _is_rate(value: object) -> bool:
    return isinstance(value, SupportsFloat) and not isinstance(value, bool) and 0 < float(value) < math.inf
