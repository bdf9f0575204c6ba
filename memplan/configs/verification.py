"""Prove a patched config: load it back and compare every effective value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan.configs.keys import first_difference, get
from memplan.configs.loading import load_document
from memplan.errors import ConfigError, PatchError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

OWN_READER = "memplan's own reader"


def verify(path: Path, text: str, expected: Mapping[str, Any], *, source: Path) -> str:
    """Load a patched text as if it lay at ``path`` and compare all its values; return the loader's name.

    Raises:
        PatchError: it does not load, or another value than the intended ones differs.
    """
    try:
        loaded = load_document(path, texts={str(path): text}).values
    except ConfigError as error:
        raise PatchError(f"the patched config would not load: {error.problem}", where=str(source)) from error
    difference = first_difference(expected, loaded)
    if difference is not None:
        found, intended = get(loaded, difference), get(expected, difference)
        raise PatchError(
            f"the patch would set {difference} to {found!r} where {intended!r} is intended",
            where=str(source),
            hint="change this config by hand",
        )
    return OWN_READER
