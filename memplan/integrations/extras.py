"""Error messages that name the extra to install where a framework is missing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from memplan.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def needs_extra(extra: str, *packages: str) -> Iterator[None]:
    """Explain a failing import of one of an extra's packages; that of an installed but broken one passes through.

    Args:
        extra: name of the extra in memplan's own distribution.
        packages: top-level packages that it brings.

    Raises:
        MissingExtraError: one of the packages is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in packages:
            raise
        raise MissingExtraError(
            f"memplan.integrations.{extra} needs the package {missing!r}, which is not installed",
            hint=f"install it with: pip install 'memplan[{extra}]'",
        ) from error
