"""A config file on disk: its text, its language and what it evaluates to."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.configs.languages.spans import line_ending
from memplan.errors import ConfigError, PatchError
from memplan.units import KIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.configs.languages.registry import Language

MAX_CONFIG_BYTES = 256 * KIB  # many times the largest public config; reading stays a matter of seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """The text of one file, byte order mark and line endings as they are.

    Args:
        path: absolute path, symbolic links kept.
        text: decoded UTF-8; a byte order mark is its first character.
        sha256: digest of the bytes on disk.
        prefix: dotted key below which its values stand in the effective config; empty for the top.
    """

    path: Path
    text: str
    sha256: str
    prefix: str = ""

    @property
    def newline(self) -> str:
        """The line ending of the file's first line; a line feed where there is none."""
        return line_ending(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A config file and what it evaluates to.

    Args:
        source: the file the user named.
        language: the language it is written in.
        values: effective values as plain nested data, inheritance resolved.
        inherited: the other files it is made of, nearest first.
        laid_over: those of them that the training command names before it, in that order.
        notes: what the reading left out, one phrase each.
    """

    source: SourceFile
    language: Language
    values: dict[str, Any]
    inherited: tuple[SourceFile, ...] = ()
    laid_over: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def resolved_values(self) -> dict[str, Any]:
        """The effective values with interpolations filled in, and sums of scripts worked out, as their loaders do."""
        return self.language.resolve(self.source.text, self.values)

    @property
    def path(self) -> Path:
        """The file the user named, absolute; the last one of several."""
        return self.source.path

    @property
    def primary(self) -> SourceFile:
        """The file that the training command names first."""
        first = self.laid_over[0] if self.laid_over else self.path
        return next(each for each in (self.source, *self.inherited) if each.path == first)


def key_within(source: SourceFile, key: str) -> str | None:
    """Return the key within a file of an effective dotted key; None where its values are elsewhere."""
    if not source.prefix:
        return key
    return key.removeprefix(f"{source.prefix}.") if key.startswith(f"{source.prefix}.") else None


def absolute_path(path: Path) -> Path:
    """Return a path as mmcv's loader would: absolute, without ``..``, symbolic links and unknown users kept."""
    home = os.path.expanduser(path)  # noqa: PTH111 - pathlib raises for a user that is not known
    return Path(os.path.abspath(home))  # noqa: PTH100 - pathlib keeps ".." or resolves links


def read_source(path: Path, *, texts: Mapping[str, str] | None = None) -> SourceFile:
    """Read one config file as text.

    Args:
        path: the file.
        texts: absolute path -> text to take instead of what is on disk.

    Raises:
        ConfigError: there is no such file, or it is a folder, too large, empty or not UTF-8.
    """
    path = absolute_path(path)
    given = (texts or {}).get(str(path))
    content = _content(path) if given is None else given.encode()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"byte 0x{content[error.start]:02x} is not UTF-8 text", where=f"{path}:{line}", hint="save it as UTF-8"
        ) from None
    if "\0" in text:
        raise ConfigError("the file is binary, not a config", where=str(path), hint="name the config file itself")
    if not text.strip("\ufeff \t\r\n"):
        raise ConfigError("the file is empty", where=str(path), hint="name a config that sets a batch size")
    return SourceFile(path=path, text=text, sha256=hashlib.sha256(content).hexdigest())


def _content(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise ConfigError("this is a folder, not a config", where=str(path), hint="name a file in it")
        if path.exists() and not path.is_file():
            raise ConfigError("this is no regular file", where=str(path), hint="name the config file itself")
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(
                f"the file has {path.stat().st_size} bytes, more than any config (at most {MAX_CONFIG_BYTES})",
                where=str(path),
                hint="name the config file itself",
            )
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError("there is no such file", where=str(path), hint="check the path") from None
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}", where=str(path)) from error


def require_keys(values: Any, path: Path) -> dict[str, Any]:
    """Return the content of a config, which must be a mapping.

    Raises:
        ConfigError: it is a list or a single value.
    """
    if isinstance(values, dict):
        return values
    problem = "the config does not hold keys and values at its top"
    raise ConfigError(problem, where=str(path), hint="name the training config")


def is_there(path: Path, texts: Mapping[str, str]) -> bool:
    """Whether a file can be read: from disk, or because its text was given."""
    return str(path) in texts or path.is_file()


def digest_of(path: Path) -> str | None:
    """Return the SHA-256 of a file's bytes, or None where there is no such file.

    Raises:
        PatchError: the file is there but cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PatchError(f"the file cannot be read: {error.strerror}", where=str(path)) from error
