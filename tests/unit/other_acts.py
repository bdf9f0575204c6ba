"""The work of a child that a template of another module forks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def answer(request: None, reply: Callable[[object], None]) -> None:
    reply(__name__)
    reply("sqlite3" in sys.modules)
