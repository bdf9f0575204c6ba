"""The random generators of Python, NumPy and PyTorch on the host: seeded alike, and put back where they were."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


def seed_generators() -> None:
    """Seed Python, NumPy and PyTorch on the host as a trial seeds its weights and its batch."""
    random.seed(0)
    np.random.seed(0)  # user code may draw from the legacy generator
    torch.default_generator.manual_seed(0)


class RandomStates(NamedTuple):
    """Where the generators are."""

    of_python: Any
    of_numpy: Any
    of_torch: torch.Tensor

    @classmethod
    def current(cls) -> RandomStates:
        """Return where they are now."""
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state())

    def restore(self) -> None:
        """Put them back."""
        random.setstate(self.of_python)
        np.random.set_state(self.of_numpy)
        torch.set_rng_state(self.of_torch)

    def are(self, other: RandomStates) -> bool:
        """Whether nothing is drawn between the two."""
        of_numpy = zip(self.of_numpy, other.of_numpy, strict=True)
        return (
            self.of_python == other.of_python
            and all(np.array_equal(mine, theirs) for mine, theirs in of_numpy)
            and torch.equal(self.of_torch, other.of_torch)
        )


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Put the generators back when the context ends."""
    before = RandomStates.current()
    try:
        yield
    finally:
        before.restore()
