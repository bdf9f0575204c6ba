"""Read TOML as plain data."""

from __future__ import annotations

import tomllib
from typing import Any

from memplan.errors import ConfigError


def load_toml(text: str, *, where: str) -> dict[str, Any]:
    """Read TOML text as plain data.

    Raises:
        ConfigError: it is not valid TOML.
    """
    try:
        return tomllib.loads(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"invalid TOML: {error}", where=where) from None
    except RecursionError:
        raise ConfigError("it is nested too deeply", where=where) from None
