"""The error for a text that its language does not allow, with the line that is at fault."""

from __future__ import annotations

from memplan.errors import ConfigError

_QUOTED_CHARACTERS = 80


def invalid_text(language: str, problem: str, text: str, *, where: str, line: int | None = None) -> ConfigError:
    """Return the error, which quotes the line, where it is known, has anything on it and is not too long.

    Args:
        language: such as ``YAML``.
        problem: what its reader says.
        text: all of the text.
        where: its file.
        line: the line at which the reader stopped, from 1; None where it does not say.
    """
    if line is None:
        return ConfigError(f"invalid {language}: {problem}", where=where)
    lines = text.splitlines()
    found = lines[line - 1].strip() if line <= len(lines) else ""
    quoted = f": {found}" if found and len(found) <= _QUOTED_CHARACTERS else ""
    hint = "correct this line, or the one before it"
    return ConfigError(f"invalid {language}: {problem}{quoted}", where=f"{where}:{line}", hint=hint)
