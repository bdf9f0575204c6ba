"""The sizes that a data preprocessor draws for whole batches in the course of training.

Training at several scales (YOLOX) resizes batches every few iterations, so that the first batch is not the largest. The
preprocessor is run on one sample again and again, at the iterations of a training; the moments of its largest and of
its median batch are kept, at which batches of any micro-batch are preprocessed.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from mmengine.logging import MessageHub

from memplan.training.random_generators import RandomStates, random_states_kept, seed_generators
from memplan.training.tensors_apart import taken_apart
from memplan.worst_case import spread_over

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

_FIRST_ITERATIONS = 100
_ITERATIONS_ALL_OVER = 16
_CALLS_WITHOUT_DRAWS = 16  # after as many, one that neither drew nor asked for the iteration is not called again
_DRAWS_WITHOUT_LARGER = 64
_MOST_ELEMENTS = 200_000_000  # of all batches together, which takes a few seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A preprocessor as it is at one moment of training.

    Args:
        preprocessor: with whatever it keeps from earlier batches; not to be called itself.
        iteration: of the training, from 0.
        random_states: what it draws from.
    """

    preprocessor: nn.Module
    iteration: int
    random_states: RandomStates

    @classmethod
    def first(cls, preprocessor: nn.Module) -> Moment:
        """Return the first moment of a training with a fixed seed."""
        with random_states_kept():
            seed_generators()
            return cls(preprocessor=preprocessor, iteration=0, random_states=RandomStates.current())

    def preprocessed(self, batch: Any) -> Any:
        """Return what becomes of a batch at this moment."""
        return self.followed(batch, self.iteration)[0]

    def followed(self, batch: Any, iteration: int) -> tuple[Any, Moment]:
        """Return what becomes of a batch at an iteration, and the moment after it."""
        preprocessor = copy.deepcopy(self.preprocessor)
        with random_states_kept(), _at(iteration):
            self.random_states.restore()
            made = preprocessor(batch, True)
            states = RandomStates.current()
        return made, Moment(preprocessor=preprocessor, iteration=iteration, random_states=states)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One batch of one sample.

    Args:
        moment: when it was preprocessed.
        shape: that of its largest tensor.
        elements: those of all its tensors.
        follows_draws: whether anything was drawn before it.
    """

    moment: Moment
    shape: tuple[int, ...]
    elements: int
    follows_draws: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMoments:
    """The moments of a training at which a preprocessor makes its largest and its median batch.

    Args:
        worst: of the largest.
        typical: of the median; None where all batches are of one size.
        notes: what the user should know of the sizes.
    """

    worst: Moment
    typical: Moment | None
    notes: tuple[str, ...]


def moments_of_batches(preprocessor: nn.Module, batch: Any, iterations: int) -> BatchMoments:
    """Look at the sizes that a preprocessor gives to batches in the course of a training.

    Args:
        preprocessor: as at the start of training; it is left as it is.
        batch: of one sample, collated.
        iterations: how long the training is.
    """
    first = Moment.first(preprocessor)
    try:
        looks = _Looks(first, batch, iterations).taken()
    except Exception:  # noqa: BLE001 - one that needs more samples, say; what is at fault shows with the batch itself
        return BatchMoments(worst=first, typical=None, notes=())
    by_size = sorted(looks, key=lambda look: look.elements)
    drawn = [look for look in by_size if look.follows_draws] or by_size
    smallest, median, largest = by_size[0], drawn[(len(drawn) - 1) // 2], by_size[-1]
    if smallest.elements == largest.elements:
        return BatchMoments(worst=first, typical=None, notes=())
    note = (
        f"the data preprocessor changes the size of whole batches in the course of training, in {len(looks)} looks "
        f"from {_written(smallest)} to {_written(largest)} a sample: planned are batches of {_written(largest)}, "
        f"and typical ones of {_written(median)}"
    )
    return BatchMoments(worst=largest.moment, typical=median.moment, notes=(note,))


def _written(look: _Look) -> str:
    return " x ".join(str(each) for each in look.shape[1:] or look.shape)


class _Looks:
    """Walks through a training from the start on, and stays at an iteration for as long as something is drawn in it."""

    def __init__(self, first: Moment, batch: Any, iterations: int) -> None:
        self._moment = first
        self._batch = batch
        self._iterations = iterations
        self._looks: list[_Look] = []
        self._asked_for = False
        self._drawn = 0
        self._drawn_without_larger = 0
        self._elements = 0

    def taken(self) -> list[_Look]:
        """Take looks until there is no more to be seen."""
        with self._watched_hub():
            for iteration in range(min(self._iterations, _FIRST_ITERATIONS)):
                while self._draws_at(iteration) and not self._is_settled():
                    pass
                if self._is_settled():
                    break
            if self._asked_for:
                all_over = spread_over(self._iterations, _ITERATIONS_ALL_OVER)
                for iteration in (*all_over, self._iterations - 1):
                    self._draws_at(iteration)
        return self._looks

    def _is_settled(self) -> bool:
        never_draws = not (self._drawn or self._asked_for) and len(self._looks) >= _CALLS_WITHOUT_DRAWS
        return never_draws or self._drawn_without_larger >= _DRAWS_WITHOUT_LARGER or self._elements >= _MOST_ELEMENTS

    def _draws_at(self, iteration: int) -> bool:
        """Look at a batch of an iteration, and return whether it was drawn or has another size than the last."""
        before = self._moment
        made, self._moment = before.followed(copy.deepcopy(self._batch), iteration)
        tensors, _ = taken_apart(made)
        look = _Look(
            moment=Moment(preprocessor=before.preprocessor, iteration=iteration, random_states=before.random_states),
            shape=tuple(max(tensors, key=torch.Tensor.numel).shape),
            elements=sum(each.numel() for each in tensors),
            follows_draws=self._drawn > 0,
        )
        is_other = bool(self._looks) and look.elements != self._looks[-1].elements
        draws = is_other or not before.random_states.are(self._moment.random_states)
        is_larger = look.elements > max((each.elements for each in self._looks), default=0)
        self._looks.append(look)
        self._elements += look.elements
        self._drawn += draws
        self._drawn_without_larger = 0 if is_larger else self._drawn_without_larger + draws
        return draws

    @contextmanager
    def _watched_hub(self) -> Iterator[None]:
        get_info = MessageHub.get_info

        def watched(hub: MessageHub, key: str, *others: Any, **named: Any) -> Any:
            self._asked_for |= key in ("iter", "epoch")
            return get_info(hub, key, *others, **named)

        with mock.patch.object(MessageHub, "get_info", watched):
            yield


@contextmanager
def _at(iteration: int) -> Iterator[None]:
    hub = MessageHub.get_current_instance()
    before = hub.get_info("iter", 0)
    hub.update_info("iter", iteration)
    try:
        yield
    finally:
        hub.update_info("iter", before)
