"""The events that the hook inside a training command reports, as values. Pure but for reading the events' file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.probe.records import from_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted:
    """A Python process of the command started with the hook in place."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizersImported:
    """A process imported torch's optimizers."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerBuilt:
    """A process made its first optimizer: what it held then, and how much of that were parameters, frozen ones too.

    A process that makes none is said to have done so once it went backward a few times; a later one that does is none.
    """

    pid: int
    resident_bytes: int
    parameters_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFigures:
    """What CUDA said of the card in use after a step.

    Peaks are since the process started, or since its first step where cuDNN searched for algorithms in that.
    """

    index: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    reserved_bytes: int
    used_bytes: int
    alloc_retries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderUse:
    """What a step had of one of PyTorch's data loaders.

    Args:
        number: tells the loaders of a process apart.
        begun: whether an iterator over it began since the step before.
        fetched: batches that it made since then, by whatever thread.
        since_first_s: how long before the end of the step the first batch of that iterator was there; None where none
            began, or batches of another were among the step's.
        asked: samples of a full batch; None where the loader does not say, as for the others.
        available: samples that there are.
        drops_last: whether a last batch of fewer samples is dropped.
        batches: how many an iterator makes.
    """

    number: int
    begun: bool
    fetched: int
    since_first_s: float | None
    asked: int | None
    available: int | None
    drops_last: bool | None
    batches: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded:
    """One optimizer step.

    Args:
        pid: of the process that stepped.
        step: its number, from 1.
        duration_s: since the end of the step before, loading of data included; None for the first.
        passes: backward passes since then.
        is_loss_finite: whether all that they started from was; None where nothing was seen.
        skipped: steps since then that the gradient scaler left out.
        optimizers: how many optimizers have stepped so far; none where each backward pass is taken for a step, as the
            process has no optimizer of torch's.
        resident_peak_bytes: largest resident set of the process so far.
        resident_file_bytes: resident pages of files, such as libraries, which processes share.
        card: what CUDA said; None where the process does not use it.
        loaders: what was seen of data loaders since the step before.
    """

    pid: int
    step: int
    duration_s: float | None
    passes: int
    is_loss_finite: bool | None
    skipped: int
    optimizers: int
    resident_peak_bytes: int
    resident_file_bytes: int
    card: CardFigures | None
    loaders: tuple[LoaderUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUnfilled:
    """A data loader that drops its last batch has fewer samples, ``available``, than the ``asked`` of one batch."""

    pid: int
    asked: int
    available: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSkipped:
    """A gradient scaler left a step out; ``count`` in a row so far."""

    pid: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesHeld:
    """What parameters, trained or not, gradients and the optimizers' state take.

    ``optimizers`` are class names; the learning rate is the highest of the first one's schedule, as far as it says, and
    the other one the highest that was stepped with; None for none.
    """

    pid: int
    optimizers: tuple[str, ...]
    parameters_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    learning_rate: float | None = None
    highest_rate_taken: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedError:
    """One exception: the names of its types, its own first, and its text."""

    types: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRaised:
    """A process did not catch an exception.

    Args:
        pid: of the process.
        chain: the exception, then those it was raised from.
        place: the user's line; None where no line is the user's.
        is_card_full: whether the allocator had come near its limit on a card.
    """

    pid: int
    chain: tuple[RaisedError, ...]
    place: str | None
    is_card_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFailed:
    """The hook itself failed; the script did not notice."""

    pid: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsFinished:
    """A process took all its steps and leaves; ``is_finite`` is about its parameters.

    ``folder_of_workers`` is a temporary one, which it does not remove; None for none.
    """

    pid: int
    is_finite: bool
    loss_scale: float | None
    folder_of_workers: str | None = None


Event = (
    ProcessStarted
    | OptimizersImported
    | OptimizerBuilt
    | StepEnded
    | BatchUnfilled
    | StepSkipped
    | BytesHeld
    | ErrorRaised
    | HookFailed
    | StepsFinished
)
_KINDS: dict[str, type[Event]] = {
    "started": ProcessStarted,
    "imported": OptimizersImported,
    "built": OptimizerBuilt,
    "step": StepEnded,
    "short": BatchUnfilled,
    "skipped": StepSkipped,
    "held": BytesHeld,
    "raised": ErrorRaised,
    "failed": HookFailed,
    "finished": StepsFinished,
}


class EventFile:
    """Reads what was added to the events' file since the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0

    def read_new(self) -> list[Event]:
        """Return the events whose lines are complete and have not been returned before."""
        with self._path.open("rb") as file:
            file.seek(self._place)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._place += len(whole) + len(newline)
        return [parse_event(line) for line in whole.decode(errors="replace").splitlines()]


def without_earlier_steps(events: Sequence[Event], pid: int) -> list[Event]:
    """Leave out the steps that a process was taken to have made before its first optimizer was seen to be made."""
    return [each for each in events if each.pid != pid or not isinstance(each, StepEnded | BytesHeld)]


def parse_event(line: str) -> Event:
    """Read one line of the hook's.

    Raises:
        StoreError: it is none.
    """
    kind = _KINDS[json.loads(line)["event"]]
    return from_json(kind, line)
