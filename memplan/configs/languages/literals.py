"""Write single values in the spelling of a config language, without float noise."""

from __future__ import annotations

import json
import keyword
import re
import shlex
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import yaml

from memplan.configs.languages.yaml_source import EXPONENT_FLOAT
from memplan.errors import PatchError
from memplan.units import without_noise

_PLAIN_WORD = re.compile(r"[-+.\w]+")
_PLAIN_POWERS = (-1, 0, 1)  # of ten: nobody writes 4.4e+0
_QUOTED = re.compile(r"""(?s)(["']).*\1""")
_TUPLE = re.compile(r"\([\d, ]*\)")  # text to YAML; its commas are harmless where the one it replaces had them
_CASES = (str.title, str.upper, str.lower)
_YAML_PAIRS = (("true", "false"), ("yes", "no"), ("on", "off"))


class PythonName(str):
    """Text that is a name in a Python config, written without quotes."""

    __slots__ = ()


def write_python(value: Any, *, like: str | None = None) -> str:
    """Write a value as a Python expression.

    Args:
        value: plain data.
        like: literal it takes the place of, whose notation (exponent, quotes) is kept.

    Raises:
        PatchError: the value is not plain data.
    """
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, float):
        return _float(value, like=like, dotted=False)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _python_text(value, '"' if like is not None and like.startswith('"') else "'")
    if isinstance(value, Mapping):
        return _python_dict(value)
    if isinstance(value, list | tuple):
        return _python_sequence(value)
    raise PatchError(f"{value!r} cannot be written into a Python config")


def _python_text(value: str, quote: str) -> str:
    if isinstance(value, PythonName):
        return str(value)
    plain = value.isprintable() and not set(value) & {"'", '"', "\\"}
    return f"{quote}{value}{quote}" if plain else repr(value)


def _python_dict(value: Mapping[Any, Any]) -> str:
    if all(isinstance(each, str) and each.isidentifier() and not keyword.iskeyword(each) for each in value):
        return f"dict({', '.join(f'{name}={write_python(each)}' for name, each in value.items())})"
    return f"{{{', '.join(f'{name!r}: {write_python(each)}' for name, each in value.items())}}}"


def _python_sequence(value: list[Any] | tuple[Any, ...]) -> str:
    inner = ", ".join(write_python(each) for each in value)
    if isinstance(value, list):
        return f"[{inner}]"
    return f"({inner},)" if len(value) == 1 else f"({inner})"


def write_yaml(value: Any, *, like: str | None = None) -> str:
    """Write a scalar or a flow list as YAML; floats keep a dot and a signed exponent, so that YAML 1.1 reads a float.

    Raises:
        PatchError: the value is not a scalar or a list of scalars.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return _yaml_bool(value, like or "true")
    if isinstance(value, float):
        return _float(value, like=like, dotted=True)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _yaml_text(value, like)
    if isinstance(value, list | tuple):
        return f"[{', '.join(write_yaml(each) for each in value)}]"
    raise PatchError(f"{value!r} cannot be spliced into a YAML config", hint="make this change by hand")


def _yaml_bool(value: bool, like: str) -> str:
    pair = next((each for each in _YAML_PAIRS if like.lower() in each), _YAML_PAIRS[0])
    case = next((each for each in _CASES if each(like) == like), str.lower)
    return case(pair[0] if value else pair[1])


def _yaml_text(value: str, like: str | None) -> str:
    if like is not None and _QUOTED.fullmatch(like):
        return f'"{json.dumps(value)[1:-1]}"' if like.startswith('"') else _single_quoted(value)
    try:
        is_safe = yaml.safe_load(value) == value and not set(value) & set("\n:#,[]{}&*!|>'\"%@`")
        is_safe = is_safe and not EXPONENT_FLOAT.fullmatch(value)
    except yaml.YAMLError:
        is_safe = False
    is_tuple = like is not None and _TUPLE.fullmatch(like) and _TUPLE.fullmatch(value)
    return value if is_safe or is_tuple else _single_quoted(value)


def _single_quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def write_json(value: Any, *, like: str | None = None) -> str:
    """Write a value as JSON."""
    if isinstance(value, float):
        return _float(value, like=like, dotted=True)
    return json.dumps(value)


def write_toml(value: Any, *, like: str | None = None) -> str:
    """Write a scalar or a list as TOML.

    Raises:
        PatchError: TOML has no such value.
    """
    is_literal = like is not None and like.startswith("'")
    if is_literal and isinstance(value, str) and value.isprintable() and "'" not in value:
        return f"'{value}'"
    if isinstance(value, list | tuple):
        return f"[{', '.join(write_toml(each) for each in value)}]"
    if value is None or isinstance(value, Mapping):
        raise PatchError(f"{value!r} cannot be spliced into a TOML config", hint="make this change by hand")
    return write_json(value, like=like)


def python_word(value: Any) -> str | None:
    """Write a single value as ``argparse`` types read it; None for anything nested."""
    if isinstance(value, dict | list | tuple):
        return None
    return f"{without_noise(value):g}" if isinstance(value, float) and _is_short(value) else str(value)


def _is_short(value: float) -> bool:
    """Whether ``%g``'s six digits keep all of a number."""
    return float(f"{value:g}") == without_noise(value)


def write_shell(value: Any, *, like: str | None = None) -> str:
    """Write a single value as a word of a command.

    Raises:
        PatchError: it is not a single value.
    """
    word = write_python(value, like=like) if isinstance(value, float) else python_word(value)
    if word is None:
        raise PatchError(f"{value!r} cannot be a word of a command", hint="make this change by hand")
    if isinstance(value, bool) and like is not None and like.islower():
        word = word.lower()
    if like is not None and like[:1] in ("'", '"') and _PLAIN_WORD.fullmatch(word):
        return f"{like[0]}{word}{like[0]}"
    return shlex.quote(word)


def _float(value: float, *, like: str | None, dotted: bool) -> str:
    """Write a float that reads back as the very same number, in the fewest digits.

    Args:
        value: the number.
        like: literal that it replaces; if that has an exponent, the result has one, unless it is a plain number.
        dotted: whether the language wants a dot and a signed exponent.
    """
    text = repr(value)
    if "e" not in text and "e" not in (like or "").lower():
        return text
    number = Decimal(text)
    if number.adjusted() in _PLAIN_POWERS:
        return text
    mantissa, power = format(number.scaleb(-number.adjusted()).normalize(), "f"), number.adjusted()
    if not dotted:
        return f"{mantissa}e{power}"
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{power:+d}"
