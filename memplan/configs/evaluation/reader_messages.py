"""What memplan and the processes that load a config say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.configs.documents import SourceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What to read.

    Args:
        path: the config file, absolute.
        texts: absolute path -> text to take instead of what is on disk.
        import_path: folders from which the config may import.
    """

    path: str
    texts: Mapping[str, str]
    import_path: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """What a config evaluates to.

    Args:
        values: effective values as plain data.
        files: the files it is made of, the config itself first.
        notes: what could not be passed on as it is.
    """

    values: dict[str, Any]
    files: tuple[SourceFile, ...]
    notes: tuple[str, ...]


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
    """What an ecosystem's own package makes of a config.

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
    """What an ecosystem's own package says of a config that it does not load.

    Args:
        loader: name and version of the package.
        problem: its reason, in one line.
        of_original: whether it refuses the file as it is, and not only the patched one.
    """

    loader: str
    problem: str
    of_original: bool
