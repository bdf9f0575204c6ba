"""Scalar random numbers, by which models choose what runs, for example which layers to drop.

Each is set to a fixed fraction of its range, so that every run takes the same branches; so are conditions on computed
values, which nothing tells. Other draws of Python, NumPy
and PyTorch start from the same generator state in every run.
"""

from __future__ import annotations

import itertools
import random
import sys
from contextlib import ExitStack, contextmanager
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from memplan.estimators.fake_tensors.replaced import replaced
from memplan.training.random_generators import RandomStates, seed_generators
from memplan.user_places import named_places, place_of_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch._ops import OpOverload

MIDDLE, LOW, HIGH = 0.5, 0.001, 0.999
_MAX_EQUAL_DRAWS = 4096  # then numbers vary, so that loops that wait for another number end
_SCALAR_DRAWS: tuple[tuple[Any, str], ...] = (
    (random, "random"), (random, "uniform"), (np.random, "random"), (np.random, "uniform"), (np.random, "rand"),
)  # fmt: skip
_CHOSEN = (
    "what the step chooses by random numbers that it draws one by one ({}) is traced with the draw that takes most, of "
    "a low, a middle and a high one"
)
_DRAWN = "the step draws further random numbers of Python or NumPy: it is traced with one draw of them"


class RandomDraws:
    """Replaces scalar random numbers, and records where Python code reads one.

    Args:
        fraction: of their range, between 0 and 1.
    """

    def __init__(self, fraction: float = MIDDLE) -> None:
        self.fraction = fraction
        self._places: dict[str, None] = {}
        self._count = 0
        self._has_decided = False
        self._others = random.Random(0)  # noqa: S311 - nothing is kept secret
        self._were_others = False

    @property
    def were_read(self) -> bool:
        """Whether Python code read a random number, or a condition that the draw decides."""
        return bool(self._places) or self._has_decided

    @property
    def notes(self) -> tuple[str, ...]:
        """Say what was drawn, one phrase per kind."""
        chosen = (_CHOSEN.format(named_places(self._places)),) if self._places else ()
        return (*chosen, _DRAWN) if self._were_others else chosen

    def drawn(self, operator: OpOverload, args: tuple[Any, ...], like: torch.Tensor) -> torch.Tensor | None:
        """Return the value of a random operator with one element; None for other operators."""
        name = operator._schema.name  # noqa: SLF001 - in no public attribute
        if name == "aten::rand":
            number: float = self._next()
        elif name == "aten::randn":
            number = NormalDist().inv_cdf(self._next())
        elif name == "aten::randint":
            low, high = (0, args[0]) if isinstance(args[1], list | tuple) else args[:2]
            number = int(low + self._next() * (high - low))
        else:
            return None
        with unset_fake_temporarily():
            return torch.full(like.shape, number, dtype=like.dtype)

    def decide(self) -> bool:
        """Return whether an unknown condition holds: it does in middle and high draws, and does not in low ones."""
        self._has_decided = True
        return self.fraction >= MIDDLE

    def replace_scalar(self, result: Any, operator: OpOverload, args: tuple[Any, ...]) -> Any:
        """Return the result, with a fixed value if it is one random element, which counts as read."""
        is_scalar = isinstance(result, torch.Tensor) and result.numel() == 1
        number = self.drawn(operator, args, result) if is_scalar else None
        if number is not None:
            self.record_read()
            result.copy_(number)
        return result

    @contextmanager
    def intercepted(self) -> Iterator[None]:
        """Replace scalar draws of Python and NumPy as well while the context is open, then restore all generators."""
        before = RandomStates.current()
        seed_generators()
        started = _states()
        try:
            with ExitStack() as stack:
                for source, name in _SCALAR_DRAWS:
                    stack.enter_context(replaced(source, name, self._scalar_draw(name, getattr(source, name))))
                collectives = sys.modules.get("torch.distributed._meta_registrations")
                if hasattr(collectives, "generate_unique_id"):  # fake collectives draw their numbers
                    stack.enter_context(replaced(collectives, "generate_unique_id", itertools.count(1).__next__))
                yield
        finally:
            self._were_others = _states() != started
            before.restore()

    def _scalar_draw(self, name: str, draw: Callable[..., Any]) -> Callable[..., Any]:
        def drawn(*args: Any, **kwargs: Any) -> Any:
            has_range = name == "uniform" and len(args) == 2
            low, high = args if has_range else (0.0, 1.0)
            is_scalar = not kwargs and (has_range or not args)
            if not is_scalar or not all(isinstance(each, int | float) for each in (low, high)):
                return draw(*args, **kwargs)
            self.record_read()
            return low + self._next() * (high - low)

        return drawn

    def record_read(self) -> None:
        """Record that Python code reads a random number."""
        self._places.setdefault(place_of_call() or "a package")

    def _next(self) -> float:
        self._count += 1
        return self.fraction if self._count <= _MAX_EQUAL_DRAWS else self._others.random()


def _states() -> list[object]:
    of_numpy: Any = np.random.get_state()
    return [random.getstate(), of_numpy[1].tobytes(), of_numpy[2]]
