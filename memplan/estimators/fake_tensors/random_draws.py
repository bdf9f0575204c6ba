"""Lone random numbers that a step draws: by them models choose what runs, as by dropping layers at random.

They are set to one place of their range, for a trace follows one branch of each choice, and must follow the same one
every time. What else is drawn by the generators of Python, NumPy and PyTorch starts from the same state in every run.
"""

from __future__ import annotations

import random
import sys
from contextlib import ExitStack, contextmanager
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from memplan.estimators.fake_tensors.replaced import replaced
from memplan.user_places import named_places, place_of_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch._ops import OpOverload

MIDDLE, LOW, HIGH = 0.5, 0.001, 0.999
_MOST_ALIKE = 4096  # a loop that draws until a number is of another kind ends
_CHOSEN = (
    "What the step chooses by random numbers that it draws one by one ({}) is traced with the draw that takes most, of "
    "a low, a middle and a high one."
)
_DRAWN = "The step draws further random numbers of Python or NumPy: it is traced with one draw of them."


class RandomDraws:
    """Answers draws of lone random numbers, and remembers where Python got one to choose by.

    Args:
        fraction: place in their range, above 0 and below 1.
    """

    def __init__(self, fraction: float = MIDDLE) -> None:
        self.fraction = fraction
        self._places: dict[str, None] = {}
        self._count = 0
        self._others = random.Random(0)  # noqa: S311 - nothing is kept secret
        self._were_others = False

    @property
    def were_read(self) -> bool:
        """Whether Python was given a number that was drawn."""
        return bool(self._places)

    @property
    def notes(self) -> tuple[str, ...]:
        """Say what was drawn, one sentence for each kind."""
        chosen = (_CHOSEN.format(named_places(self._places)),) if self.were_read else ()
        return (*chosen, _DRAWN) if self._were_others else chosen

    def drawn(self, operator: OpOverload, args: tuple[Any, ...], like: torch.Tensor) -> torch.Tensor | None:
        """Return what an operator draws that makes a tensor of one element; None where it has another range."""
        name = operator._schema.name  # noqa: SLF001 - the only place that says it
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

    def in_place_of(self, result: Any, operator: OpOverload, args: tuple[Any, ...]) -> Any:
        """Answer a draw of a lone number on real tensors, where it is taken to be read; return all else as it is."""
        is_lone = isinstance(result, torch.Tensor) and result.numel() == 1
        number = self.drawn(operator, args, result) if is_lone else None
        if number is not None:
            self.read()
            result.copy_(number)
        return result

    @contextmanager
    def intercepted(self) -> Iterator[None]:
        """Answer Python and NumPy, too, while the context is open, and leave all generators as they were."""
        numpy_random: Any = sys.modules.get("numpy.random")
        before = random.getstate(), torch.get_rng_state(), None if numpy_random is None else numpy_random.get_state()
        sources = [(random, name) for name in ("random", "uniform")]
        sources += [] if numpy_random is None else [(numpy_random, name) for name in ("random", "uniform", "rand")]
        random.seed(0)
        if numpy_random is not None:
            numpy_random.seed(0)
        torch.default_generator.manual_seed(0)
        started = _states(numpy_random)
        try:
            with ExitStack() as stack:
                for source, name in sources:
                    stack.enter_context(replaced(source, name, self._lone(name, getattr(source, name))))
                yield
        finally:
            self._were_others = _states(numpy_random) != started
            random.setstate(before[0])
            torch.set_rng_state(before[1])
            if numpy_random is not None:
                numpy_random.set_state(before[2])

    def _lone(self, name: str, draw: Callable[..., Any]) -> Callable[..., Any]:
        def drawn(*args: Any, **kwargs: Any) -> Any:
            has_range = name == "uniform" and len(args) == 2
            low, high = args if has_range else (0.0, 1.0)
            is_lone = not kwargs and (has_range or not args)
            if not is_lone or not all(isinstance(each, int | float) for each in (low, high)):
                return draw(*args, **kwargs)
            self.read()
            return low + self._next() * (high - low)

        return drawn

    def read(self) -> None:
        """Remember that Python is given a number that was drawn."""
        self._places.setdefault(place_of_call() or "a package")

    def _next(self) -> float:
        self._count += 1
        return self.fraction if self._count <= _MOST_ALIKE else self._others.random()


def _states(numpy_random: Any) -> list[object]:
    if numpy_random is None:
        return [random.getstate()]
    _, keys, position, *_ = numpy_random.get_state()
    return [random.getstate(), keys.tobytes(), position]
