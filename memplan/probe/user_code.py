"""Separate what the user's code raises in a trial from what goes wrong in memplan itself.

The error itself is kept, because it may be lack of memory: ``failures`` judges that. A trace has none to run out of and
tells the user at once (``call_user`` in ``estimators/recorder/user_calls.py``).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from memplan.errors import WorkloadError

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
