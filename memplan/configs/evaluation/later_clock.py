"""A later time for the code of a config, by which values that are made of the time are told."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# Each part of the date and the time is another one then, whatever the length of the months between.
AHEAD = dt.timedelta(days=398, hours=1, minutes=1, seconds=1)


def set_clock_ahead() -> None:
    """Make ``time`` and ``datetime`` tell a later time for the rest of this process, to what asks them by name."""
    real, ahead_s = dict(vars(time)), round(AHEAD.total_seconds())

    def of_seconds(tell: Callable[[float], Any]) -> Callable[..., Any]:
        return lambda seconds=None: tell(time.time() if seconds is None else seconds)

    localtime = of_seconds(real["localtime"])
    changed: dict[str, Callable[..., Any]] = {
        "time": lambda: real["time"]() + ahead_s,
        "time_ns": lambda: real["time_ns"]() + ahead_s * 10**9,
        "localtime": localtime,
        "gmtime": of_seconds(real["gmtime"]),
        "ctime": of_seconds(real["ctime"]),
        "asctime": lambda moment=None: real["asctime"](moment or localtime()),
        "strftime": lambda layout, moment=None: real["strftime"](layout, moment or localtime()),
    }
    for name, function in changed.items():
        setattr(time, name, function)
    dt.datetime = _Later  # type: ignore[misc]  # what a config takes from the module


class _Later(dt.datetime):
    """Its ``today`` asks ``time.time``, as that of ``date`` does."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> _Later:
        return super().now(tz) + AHEAD

    @classmethod
    def utcnow(cls) -> _Later:
        return super().now(dt.UTC).replace(tzinfo=None) + AHEAD
