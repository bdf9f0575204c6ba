"""Classify an exception raised inside a trial: memory, a failed kernel, the user's own bug, or memplan's.

By type wherever a type exists, by text where libraries report through a plain ``RuntimeError``. What user code raises
is marked as its own and kept, because it may be lack of memory. A trace has none to run out of and tells the user at
once (``call_user`` in ``estimators/recorder/user_calls.py``). Imports torch; child processes only.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

import torch

from memplan.errors import MemplanError, WorkloadError
from memplan.probe.failure_texts import is_kernel_text, memory_kind_of_text, one_line
from memplan.probe.trials import TrialVerdict
from memplan.results import OutcomeKind
from memplan.training.workload_contract import TooFewSamplesError
from memplan.user_places import place_of_error

if TYPE_CHECKING:
    from collections.abc import Iterator


class UserCodeError(Exception):
    """The user's model, batch, loss or optimizer raised something, which is this error's cause."""


@contextlib.contextmanager
def blamed_on_user() -> Iterator[None]:
    """Mark whatever is raised inside, ``SystemExit`` included, as the user's.

    Raises:
        UserCodeError: anything was raised but a ``WorkloadError``, which says so by itself.
    """
    try:
        yield
    except (WorkloadError, UserCodeError):
        raise
    except BaseException as error:
        raise UserCodeError from error


def classify_failure(error: BaseException, *, memory_is_full: bool) -> TrialVerdict:
    """Say how a trial that raised has ended.

    Args:
        error: what was raised; errors it was raised from are looked at too. Only a ``UserCodeError`` or a
            ``WorkloadError`` can be the user's.
        memory_is_full: whether the device was nearly full at that moment, which decides about messages that libraries
            use for lack of memory as well as for other failures.
    """
    for each in _chain(error):
        kind = _memory_kind(each, memory_is_full=memory_is_full)
        if kind is not None:
            return TrialVerdict(kind=kind, evidence=_one_line(each))
    raised = what_was_raised(error)
    if _is_kernel_failure(raised):
        return TrialVerdict(kind=OutcomeKind.KERNEL_FAILURE, evidence=_one_line(raised))
    if isinstance(error, UserCodeError | WorkloadError):
        available = raised.available if isinstance(raised, TooFewSamplesError) else None
        return TrialVerdict(kind=OutcomeKind.USER_ERROR, evidence=_of_user(raised), available_samples=available)
    return TrialVerdict(kind=OutcomeKind.CRASH, evidence=f"memplan: {told_in_one_line(error)}")


def what_was_raised(error: BaseException) -> BaseException:
    """Return the error itself, without the mark that it is the user's."""
    return error.__cause__ if isinstance(error, UserCodeError) and error.__cause__ is not None else error


def told_in_one_line(error: BaseException) -> str:
    """Return what was raised in one line, without judging it."""
    raised = what_was_raised(error)
    return str(raised) if isinstance(raised, MemplanError) else _one_line(raised)


def _of_user(error: BaseException) -> str:
    if isinstance(error, MemplanError):
        return str(error)
    if isinstance(error, SystemExit):
        return f"the workload ended the process with exit({error.code}){_place(error)}"
    return f"{_one_line(error)}{_place(error)}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _memory_kind(error: BaseException, *, memory_is_full: bool) -> OutcomeKind | None:
    if isinstance(error, torch.OutOfMemoryError):
        return OutcomeKind.DEVICE_OUT_OF_MEMORY
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return OutcomeKind.HOST_OUT_OF_MEMORY
    if not isinstance(error, RuntimeError):
        return None
    return memory_kind_of_text(str(error), memory_is_full=memory_is_full)


def _is_kernel_failure(error: BaseException) -> bool:
    if isinstance(error, torch.AcceleratorError):
        return True
    return isinstance(error, RuntimeError) and is_kernel_text(str(error))


def _one_line(error: BaseException) -> str:
    return one_line(type(error).__name__, str(error))


def _place(error: BaseException) -> str:
    place = place_of_error(error)
    return f" ({place})" if place else ""
