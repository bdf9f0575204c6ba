"""The largest micro-batch that a plan considers: what is asked for, and what the training set can fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan.planning.question import Question
    from memplan.planning.traces import Traces


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchCap:
    """The largest micro-batch that is considered.

    Args:
        size: samples of it.
        reason: why none beyond it is, one sentence.
    """

    size: int
    reason: str


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
    return MicroBatchCap(
        size=share, reason=f"The training set has {samples} samples{among}: they fill no larger micro-batch."
    )
