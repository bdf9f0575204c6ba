"""The half-precision types of a recipe's precision, for operators or for the weights themselves."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from memplan.recipe import Precision

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from memplan.recipe import Recipe
    from memplan.workload import Workload

HALF_TYPES = (torch.float16, torch.bfloat16)
_OF_OPERATORS = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}
_OF_WEIGHTS = {Precision.FP16_TRUE: torch.float16, Precision.BF16_TRUE: torch.bfloat16}


def autocast(precision: Precision, device_type: str) -> AbstractContextManager[Any]:
    """Return the context in which the forward pass and the loss run; one of no effect where nothing is cast."""
    dtype = _OF_OPERATORS.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device_type, dtype=dtype)


def weights_dtype(workload: Workload, recipe: Recipe) -> torch.dtype | None:
    """Return the type that weights and inputs are converted to; None where they stay as they are made.

    DeepSpeed converts them where others cast operators, and keeps masters of the weights.
    """
    converted = _OF_OPERATORS if workload.deepspeed is not None else _OF_WEIGHTS
    return converted.get(recipe.precision)
