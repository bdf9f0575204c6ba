"""What launchers of training scripts report of a process that failed without an exception of its own. Pure.

The texts are those of torchrun (``torch/distributed/elastic/multiprocessing/errors``) and of whatever runs the script
with ``subprocess``, such as ``accelerate launch``.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan.probe.commands.events import ErrorRaised

_TRACEBACK = "Traceback (most recent call last):"
_ELASTIC_STATUS = re.compile(r"^\s*exitcode\s*:\s*(-?\d+)", re.MULTILINE)
_SUBPROCESS_STATUS = re.compile(r"returned non-zero exit status (\d+)|died with <Signals\.\w+: (\d+)>")
_ELASTIC_LOG = re.compile(r"^(?:[IWEF]\d{4} \d\d:\d\d:\d\d|(?:INFO|WARNING|ERROR):torch\.distributed\.)")


def launched_status(event: ErrorRaised) -> int | None:
    """Return the exit status that a launcher tells of its script, negative for a signal; None for any other error."""
    error = event.chain[0]
    if "ChildFailedError" in error.types:
        statuses = _ELASTIC_STATUS.findall(error.text)
        return int(statuses[-1]) if statuses else None  # the root cause comes last
    if "CalledProcessError" not in error.types or not _is_of_a_program(event.place):
        return None
    found = _SUBPROCESS_STATUS.search(error.text)
    if found is None:
        return None
    status, number = found.groups()
    return int(status) if status else -int(number)


def before_launcher(log_tail: str) -> str:
    """Return what was printed before a launcher's own traceback, which is the last one, and its lines of logging."""
    printed, _, _ = log_tail.rpartition(_TRACEBACK)
    return "\n".join(line for line in printed.splitlines() if not _ELASTIC_LOG.match(line))


def _is_of_a_program(place: str | None) -> bool:
    """Whether no line of a module of the user's raised: installed programs have no suffix."""
    return place is None or not PurePath(place.rpartition(":")[0]).suffix
