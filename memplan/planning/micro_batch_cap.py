"""The largest micro-batch that a plan considers: what is asked for, and what the training set can fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan.planning.question import Question
    from memplan.planning.traces import Traces
    from memplan.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchCap:
    """The largest micro-batch that is considered.

    Args:
        size: samples of it.
        reason: why none beyond it is, one sentence.
        training_samples: how many there are for each replica, where they are what limits it; None where they are not.
    """

    size: int
    reason: str
    training_samples: int | None = None


def micro_batch_cap(question: Question, traces: Traces) -> MicroBatchCap:
    """Return the largest micro-batch that is asked for and, where the training set's size is known, can be filled."""
    asked = question.largest_micro_batch
    found = MicroBatchCap(size=asked, reason=f"Larger micro-batches than {asked} are not looked at.")
    samples = traces.training_samples(question.subject.current)
    return found if samples is None else within_data(found, samples, question.subject.current.world_size)


def within_data(cap: MicroBatchCap, samples: int, world_size: int) -> MicroBatchCap:
    """Return a cap, or the lower one up to which a training set can fill a micro-batch of every replica.

    Args:
        cap: what is considered so far.
        samples: how many the training set has.
        world_size: replicas, each of which trains on its share of them.
    """
    share = max(samples // world_size, 1)
    if share >= cap.size:
        return cap
    among = f", {share} for each of {world_size} replicas" if world_size > 1 else ""
    reason = f"The training set has {samples} samples{among}: they fill no larger micro-batch."
    return MicroBatchCap(size=share, reason=reason, training_samples=share)


def notes_on_unfilled(cap: MicroBatchCap, current: Recipe) -> tuple[str, ...]:
    """Say that even the current micro-batch is larger than the training set, where it is: scaling starts from it."""
    if cap.training_samples is None or cap.training_samples >= current.micro_batch_size:
        return ()
    unfilled = f"the training set does not even fill the current micro-batch of {current.micro_batch_size}"
    return (f"{unfilled}, from which rate and schedules are scaled: plan with the data that will be trained on",)
