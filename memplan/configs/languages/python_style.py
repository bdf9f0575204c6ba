"""Tell the three styles of Python configs apart by their syntax trees; nothing is executed."""

from __future__ import annotations

import ast
import sys
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BASE_KEY = "_base_"
CONFIG_FUNCTION = "get_config"  # what ml_collections calls a function that returns a config
_READ_BASE = "read_base"
_LAZY_TOOLS = frozenset({"LazyCall", "LazyConfig", "get_config", "model_zoo"})


class PythonStyle(StrEnum):
    """How a Python config inherits.

    ``base-list`` names files in ``_base_`` (mmcv, mmengine) or inherits nothing; ``pure-python`` is mmengine's, with
    ``read_base()``; ``lazy-config`` is detectron2's, which imports other configs and changes what they hold.
    """

    BASE_LIST = "base-list"
    PURE_PYTHON = "pure-python"
    LAZY_CONFIG = "lazy-config"


@lru_cache(maxsize=64)
def style_of(text: str) -> PythonStyle:
    """Return the style of a Python config; ``base-list`` where it is not valid Python."""
    body = statements(text) or []
    if any(base_assignment(each) for each in body):
        return PythonStyle.BASE_LIST
    if any(is_read_base(each) for each in body):
        return PythonStyle.PURE_PYTHON
    imports = [each for each in body if isinstance(each, ast.ImportFrom)]
    if any(each.level or _is_of_lazy_configs(each) for each in imports):
        return PythonStyle.LAZY_CONFIG
    foreign = {name for each in body for name in _foreign_names(each)}
    return PythonStyle.PURE_PYTHON if foreign & set(_names_of_types(body)) else PythonStyle.BASE_LIST


def is_program(text: str) -> bool:
    """Whether a Python text trains when it is run.

    It calls ``backward``, reads its command line where it is read itself, or its main part calls a function of its own
    or hands one, or a class of its own, to another package: ``CLI(main)``, ``tyro.cli(Config)``.
    """
    body = statements(text) or []
    main_parts = [each for each in body if isinstance(each, ast.If) and "__name__" in ast.unparse(each.test)]
    calls = [each.func for part in body for each in ast.walk(part) if isinstance(each, ast.Call)]
    goes_backward = any(isinstance(each, ast.Attribute) and each.attr == "backward" for each in calls)
    return goes_backward or any(map(_reads_command_line, body)) or any(_starts(body, each) for each in main_parts)


def _reads_command_line(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return any(isinstance(each, ast.Attribute) and ast.unparse(each) == "sys.argv" for each in ast.walk(statement))


def _starts(body: list[ast.stmt], main_part: ast.stmt) -> bool:
    """Whether the main part of a file starts what the file defines."""
    functions = {each.name for each in body if isinstance(each, ast.FunctionDef)}
    own = functions | {each.name for each in body if isinstance(each, ast.ClassDef)}
    foreign = {name for each in body for name in _foreign_names(each)}
    return any(
        _names_in(call.func) & functions
        or (_names_in(call.func) & foreign and any(_names_in(each) & own for each in _handed_to(call)))
        for call in _calls_besides_printing(main_part)
    )


def _calls_besides_printing(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in a statement, without those that only show what a config holds."""
    if isinstance(node, ast.Call):
        if ast.unparse(node.func).rpartition(".")[2] in ("print", "pprint"):
            return
        yield node
    for each in ast.iter_child_nodes(node):
        yield from _calls_besides_printing(each)


def _handed_to(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(each.value for each in call.keywords)]


def _names_in(expression: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(expression) if isinstance(each, ast.Name)}


def statements(text: str) -> list[ast.stmt] | None:
    """Return the statements of a Python text, its byte order mark not counted; None where it is not valid Python."""
    try:
        return ast.parse(text.removeprefix("\ufeff")).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def syntax_tree(text: str, path: Path) -> ast.Module:
    """Parse a Python config.

    Raises:
        ConfigError: it is not valid Python.
    """
    try:
        return ast.parse(text, filename=str(path))
    except SyntaxError as error:
        shown = (error.text or "").strip()
        problem = f"invalid Python: {error.msg}" + (f": {shown}" if shown else "")
        raise ConfigError(problem, where=f"{path}:{error.lineno or 1}", hint="correct this line") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"invalid Python: {error}", where=str(path)) from None


def base_assignment(statement: ast.stmt) -> ast.Assign | None:
    """Return a statement that assigns ``_base_``, or None."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return statement if isinstance(target, ast.Name) and target.id == BASE_KEY else None
    return None


def is_read_base(statement: ast.stmt) -> bool:
    """Whether a statement is ``with read_base():``."""
    if not isinstance(statement, ast.With) or len(statement.items) != 1:
        return False
    call = statement.items[0].context_expr
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == _READ_BASE


def _is_of_lazy_configs(statement: ast.ImportFrom) -> bool:
    """Whether an import is one of detectron2's tools for writing configs."""
    names = {alias.name for alias in statement.names}
    return (statement.module or "").partition(".")[0] == "detectron2" and bool(names & _LAZY_TOOLS)


def is_builtin(module: str) -> bool:
    """Whether a module is Python's own, which a config may really import."""
    return module.partition(".")[0] in sys.stdlib_module_names


def _foreign_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that an import from another package binds."""
    if isinstance(statement, ast.ImportFrom) and not is_builtin(statement.module or ""):
        yield from (each.asname or each.name for each in statement.names)
    elif isinstance(statement, ast.Import):
        yield from (each.asname or each.name.partition(".")[0] for each in statement.names if not is_builtin(each.name))


def _names_of_types(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names from which ``type=`` arguments are taken."""
    for node in (each for statement in body for each in ast.walk(statement)):
        if isinstance(node, ast.keyword) and node.arg == "type":
            value = node.value
            while isinstance(value, ast.Attribute):
                value = value.value
            if isinstance(value, ast.Name):
                yield value.id
