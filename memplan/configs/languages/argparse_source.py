"""Read the defaults of a script's ``argparse`` arguments from its syntax tree, and find where each is written.

The script is not run. An argument counts where its name is a literal; its key is the name ``argparse`` keeps it under.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.configs.languages.python_source import span_of
from memplan.configs.languages.spans import Edit, Location
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SWITCHES = {"store_true": False, "store_false": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One declared argument.

    Args:
        key: the name under which ``argparse`` keeps its value.
        flag: how the command line calls it.
        call: where it is declared.
        default: the expression of its default; None where it has none.
    """

    key: str
    flag: str
    call: ast.Call
    default: ast.expr | None


def declares_arguments(text: str) -> bool:
    """Say whether a Python text is a script that declares arguments, and not a config."""
    return "add_argument" in text and any(True for _ in _arguments(text))


def load_arguments(text: str, *, where: str) -> dict[str, Any]:
    """Return the defaults that are literals, by key; switches are off.

    Raises:
        ConfigError: it is not Python.
    """
    try:
        return {each.key: value for each in _arguments(text) if (value := _default_value(each)) is not None}
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"invalid Python: {error}", where=where) from None


def flag_in(text: str, key: str) -> str:
    """Return how the command line calls an argument."""
    return next((each.flag for each in _arguments(text) if each.key == key), f"--{key}")


def locate_in_arguments(text: str, key: str) -> Location | None:
    """Find the default of an argument; of repeated ones the last counts."""
    found = next((each for each in reversed(list(_arguments(text))) if each.key == key), None)
    if found is None:
        return None
    if found.default is None:
        return Location(span=span_of(text, found.call), line=found.call.lineno, obstacle="it has no default")
    obstacle = None if _is_literal(found.default) else "its default is computed"
    return Location(span=span_of(text, found.default), line=found.default.lineno, obstacle=obstacle)


def no_addition(_text: str, _entries: dict[str, str]) -> Edit | None:
    """Add nothing: a script does not know arguments that it does not declare."""
    return None


def _arguments(text: str) -> Iterator[Argument]:
    try:
        tree = ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            flags = [each for each in names if each.startswith("-")]
            if flags:
                yield _argument(node, flags)


def _argument(call: ast.Call, flags: list[str]) -> Argument:
    keywords = {each.arg: each.value for each in call.keywords if each.arg is not None}
    flag = next((each for each in flags if each.startswith("--")), flags[0])
    named = keywords.get("dest")
    is_named = isinstance(named, ast.Constant) and isinstance(named.value, str)
    key = named.value if is_named and isinstance(named, ast.Constant) else flag.lstrip("-").replace("-", "_")
    return Argument(key=str(key), flag=flag, call=call, default=keywords.get("default"))


def _default_value(argument: Argument) -> Any:
    if argument.default is not None:
        return ast.literal_eval(argument.default) if _is_literal(argument.default) else None
    actions = [each.value for each in argument.call.keywords if each.arg == "action"]
    action = actions[0].value if actions and isinstance(actions[0], ast.Constant) else None
    return _SWITCHES.get(action) if isinstance(action, str) else None


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
