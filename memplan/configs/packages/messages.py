"""The messages between memplan and the processes that load configs with packages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageRequest:
    """A text to load with an ecosystem's own package.

    Args:
        package: name of the package.
        path: where the text belongs, absolute; it need not be there yet.
        text: what to load.
        over: files that it is laid over, in order, absolute.
    """

    package: str
    path: str
    text: str
    over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageAnswer:
    """An ecosystem's own package's reading of a config.

    Args:
        values: effective values as plain data.
        loader: name and version of the package.
        unjudged: changed keys on which the package has no say.
    """

    values: dict[str, Any]
    loader: str
    unjudged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageRefusal:
    """The refusal of an ecosystem's own package to load a config.

    Args:
        loader: name and version of the package.
        problem: its reason, in one line.
        of_original: whether it refuses the file as it is, and not only the patched one.
    """

    loader: str
    problem: str
    of_original: bool
