"""Separate what the user's code raises from what goes wrong in memplan itself."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from memplan.errors import WorkloadError

if TYPE_CHECKING:
    from collections.abc import Iterator


class UserCodeError(Exception):
    """The user's model, batch, loss or optimizer raised something, which is this error's cause."""


@contextlib.contextmanager
def user_code() -> Iterator[None]:
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
