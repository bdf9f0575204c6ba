"""PyTorch's settings that decide which kernels run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Only algorithms that repeat their results."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def warning_of_others() -> Iterator[None]:
    """Algorithms that repeat their results where there are some, and a warning elsewhere."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
