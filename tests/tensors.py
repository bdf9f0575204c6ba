"""Tensors without values, for rules that look at shape, type and layout alone, and the rules of all cards."""

from __future__ import annotations

from functools import partial

import torch

from memplan.estimators.lowering.cuda_temporaries import CUDA_RULES
from memplan.estimators.lowering.temporary_bytes import temporaries_by

cuda_temporary_bytes = partial(temporaries_by, CUDA_RULES)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def in_channels_last(image: torch.Tensor) -> torch.Tensor:
    return image.contiguous(memory_format=torch.channels_last)
