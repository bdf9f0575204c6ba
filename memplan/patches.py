"""A change to the user's files that has not been made yet, as a value."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueChange:
    """One changed value in the user's config: where, from what, to what and why.

    Args:
        path: file the new value is written to, absolute.
        key: dotted key.
        before: literal of the value before, or that it was not set.
        after: literal of the new value.
        reason: why it changes.
        value: the new value as plain data.
    """

    path: str
    key: str
    before: str
    after: str
    reason: str
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """One file that a patch creates or changes.

    Args:
        path: the file, absolute.
        original_text: its whole text before the patch, line endings and byte order mark kept; None where it is new.
        patched_text: its whole text after the patch.
        new_folder: outermost folder that is made for the file; None where its folder was there when it was planned.
    """

    path: str
    original_text: str | None
    patched_text: str
    new_folder: str | None = None

    @property
    def original_sha256(self) -> str | None:
        """Digest of the file's bytes before the patch; None where there is no file then."""
        return None if self.original_text is None else _sha256(self.original_text)

    @property
    def patched_sha256(self) -> str:
        """Digest of the file's bytes after the patch."""
        return _sha256(self.patched_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigPatch:
    """A change to the user's files that has not been made yet; all of them change, or none.

    Args:
        files: what changes on disk, the config that is to be used for training first.
        diff: unified diff of all files that ``git apply`` and ``patch -p1`` take, relative to ``root_path``.
        root_path: folder the diff's paths are relative to.
        changes: every changed value with its reason.
        verified_by: name of the loader that read the patched config back and found only the intended changes.
        override_line: what says the same on the training command, with no file changed; None where nothing does.
        notes: what could not be changed and what the user should look at.
    """

    files: tuple[FilePatch, ...]
    diff: str
    root_path: str
    changes: tuple[ValueChange, ...]
    verified_by: str
    override_line: str | None = None
    notes: tuple[str, ...] = ()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
