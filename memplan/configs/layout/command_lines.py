"""A change as words of a training command, in the forms that training programs take."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from memplan.configs.languages.literals import python_word, write_yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan.configs.assignments import Assignment


def as_pairs(
    assignments: Sequence[Assignment], *, prefix: str = "", write: Callable[[Any], str | None] | None = None
) -> str | None:
    """Return ``a.b=c`` words, each behind a prefix such as ``++``; None where a value is not one word.

    Args:
        assignments: what changes.
        prefix: what stands before each key.
        write: how a value is written; None takes YAML's spelling.
    """
    return _joined(assignments, lambda each, word: f"{prefix}{each.key}={word}", write or _yaml_word)


def as_flags(assignments: Sequence[Assignment], *, dashed: bool = False) -> str | None:
    """Return ``--name value`` words, with dashes in the names where the program wants them; None as above.

    A switch that the program is known to have stands alone.
    """
    return _joined(assignments, lambda each, word: each.switch or f"{_flag(each, dashed=dashed)} {word}", python_word)


def cfg_options(assignments: Sequence[Assignment]) -> str | None:
    """Return the option of OpenMMLab's train scripts that makes assignments; None for a dict."""
    pairs = as_pairs(assignments, write=_bracketed_word)
    return None if pairs is None else f"--cfg-options {pairs}"


def as_switched_flags(assignments: Sequence[Assignment], *, dashed: bool = False) -> str | None:
    """Return flags of a program whose switches have no value; None where one would have to be turned off."""
    if any(each.value is False for each in assignments):
        return None
    flags = as_flags([each for each in assignments if each.value is not True], dashed=dashed)
    switches = [_flag(each, dashed=dashed) for each in assignments if each.value is True]
    return None if flags is None else " ".join([*([flags] if flags else []), *switches])


def _flag(assignment: Assignment, *, dashed: bool) -> str:
    return assignment.flag or f"--{assignment.key.replace('_', '-') if dashed else assignment.key}"


def _joined(
    assignments: Sequence[Assignment],
    form: Callable[[Assignment, str], str],
    write: Callable[[Any], str | None],
) -> str | None:
    words = [write(each.value) for each in assignments]
    if any(word is None for word in words):
        return None
    return " ".join(form(each, shlex.quote(str(word))) for each, word in zip(assignments, words, strict=True))


def _yaml_word(value: Any) -> str | None:
    """Write a value as Hydra and LightningCLI read it; None for a dict."""
    if isinstance(value, list | tuple):
        words = [_yaml_word(each) for each in value]
        return None if None in words else f"[{','.join(map(str, words))}]"
    return None if isinstance(value, dict) else write_yaml(value)


def _bracketed_word(value: Any) -> str | None:
    """Write a value as OpenMMLab's ``DictAction`` reads it, lists in brackets; None for a dict."""
    if isinstance(value, list | tuple):
        words = [_bracketed_word(each) for each in value]
        opening, closing = "[]" if isinstance(value, list) else "()"
        return None if None in words else f"{opening}{','.join(map(str, words))}{closing}"
    return python_word(value)
