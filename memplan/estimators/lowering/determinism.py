"""Whether kernels are to repeat their results, as PyTorch's settings say (``torch.use_deterministic_algorithms``)."""

from __future__ import annotations

import torch

_REFUSING = 2  # ``torch.get_deterministic_debug_mode``: what does not repeat its results raises an error


def prefers_deterministic() -> bool:
    """Whether operators that have another algorithm use it, be it only to warn of those that have none."""
    return torch.are_deterministic_algorithms_enabled()


def requires_deterministic() -> bool:
    """Whether what does not repeat its results is refused; attention repeats its own only then (``sdp_utils.cpp``)."""
    return torch.get_deterministic_debug_mode() == _REFUSING
