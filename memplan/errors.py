"""Every error memplan raises on purpose.

::

    MemplanError
    ├── UsageError               an option or argument is out of range or contradicts another
    │   └── UnitError            a size such as "24GiB" cannot be read
    ├── ConfigError              a config file cannot be read, or a knob in it cannot be found
    │   └── PatchError           a change cannot be written into, or no longer fits, the user's file
    ├── WorkloadError            the user's workload cannot be found, raises, or breaks its contract
    ├── DeviceError              a card is unknown, or a live device cannot be reached
    │   └── NoDriverError        this machine has no NVIDIA driver
    ├── TraceError               the model cannot be traced on fake tensors
    ├── NothingFitsError         no recipe fits the budget
    ├── StoreError               the journal cannot be read or written
    ├── OutputError              a file cannot be written
    ├── LaunchError              the plan that rank 0 was to make for all ranks never came
    ├── ChildError               a helper process ended without an answer
    └── MissingExtraError        a package is missing that only an optional part of memplan needs

Running out of memory inside a trial is not an error: it is an outcome, see ``memplan.results.Outcome``.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST_TEXT = 300


class MemplanError(Exception):
    """One line for the user: where it happened, what is wrong, what to do.

    Args:
        problem: what is wrong, naming the offending key and value.
        where: file, ``file:line`` or option the problem was found in; None when there is no such place.
        hint: what the user can do about it; None when nothing sensible can be said.
        detail: longer evidence (a traceback, the end of a log) that is shown below the one line where it helps.
    """

    def __init__(
        self, problem: str, *, where: str | None = None, hint: str | None = None, detail: str | None = None
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.where = where
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        located = f"{self.where}: {self.problem}" if self.where else self.problem
        return f"{located}; {self.hint}" if self.hint else located

    def __reduce__(self) -> tuple[object, ...]:
        state = {"where": self.where, "hint": self.hint, "detail": self.detail}
        return (_rebuild, (type(self), self.problem, state))


def _rebuild(kind: type[MemplanError], problem: str, state: dict[str, str | None]) -> MemplanError:
    return kind(problem, **state)


class UsageError(MemplanError):
    """An option or argument is out of range or contradicts another."""


class UnitError(UsageError):
    """A size such as ``24GiB`` cannot be read."""


class ConfigError(MemplanError):
    """A config file cannot be read, or a knob in it cannot be found."""


class PatchError(ConfigError):
    """A change cannot be written into, or no longer fits, the user's file."""


class WorkloadError(MemplanError):
    """The user's workload cannot be found, raises, or breaks its contract."""


class DeviceError(MemplanError):
    """A card is unknown, or a live device cannot be reached."""


class NoDriverError(DeviceError):
    """This machine has no NVIDIA driver."""


class TraceError(MemplanError):
    """The model cannot be traced on fake tensors."""


class NothingFitsError(MemplanError):
    """No recipe fits the budget."""


class StoreError(MemplanError):
    """The journal cannot be read or written."""


class OutputError(MemplanError):
    """A file cannot be written."""


class LaunchError(MemplanError):
    """The plan that rank 0 was to make for all ranks never came."""


class ChildError(MemplanError):
    """A helper process ended without an answer."""


class MissingExtraError(MemplanError, ImportError):
    """A package is missing that an optional part of memplan needs; an ``ImportError`` too, as imports raise it."""


def raised_text(error: BaseException) -> str:
    """Return what was raised, and what explicitly caused it in the first place, in one line; long texts are cut."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    return _one_line(error) if first is error else f"{_one_line(error)} (from {_one_line(first)})"


def _one_line(error: BaseException) -> str:
    """Put a text into one line; of a long one both ends are kept, as some quote a whole model before what is wrong."""
    name, text = type(error).__name__, " ".join(str(error).split()).rstrip(".")
    line = f"{name}: {text}" if text else name
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT // 2]} ... {line[-_LONGEST_TEXT // 2 :]}"


def hint_on_names(name: str, known: Iterable[str], *, otherwise: str | None = None) -> str:
    """Return the hint for a name that is not known: those it resembles; else another hint, or all there are."""
    known = tuple(known)
    near = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else otherwise or f"use one of {', '.join(known)}"
