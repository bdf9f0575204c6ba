"""Tensors without values, for rules that look at shape, type and layout alone, and the rules of an A100."""

from __future__ import annotations

from functools import partial

import torch

from memplan.estimators.lowering.cuda_temporaries import CUDA_RULES
from memplan.estimators.lowering.sort_temporaries import sort_rules
from memplan.estimators.lowering.temporary_bytes import temporaries_by

cuda_temporary_bytes = partial(temporaries_by, (*CUDA_RULES, sort_rules((8, 0))))


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def heads(count: int, *, length: int = 1024, width: int = 64, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return heads that lie in memory as a projection makes them: by positions first."""
    return torch.empty(1, length, count, width, dtype=dtype, device="meta").transpose(1, 2)


def in_channels_last(image: torch.Tensor) -> torch.Tensor:
    return image.contiguous(memory_format=torch.channels_last)
