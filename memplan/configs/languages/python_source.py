"""Find where a Python config writes a value, from its syntax tree alone; nothing is executed."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from functools import lru_cache

from memplan.configs.languages.python_bindings import (
    bindings,
    class_called,
    class_named,
    constructor_of,
    default_of_field,
    defaults_of,
    members_of,
    parameters_of,
    target_path,
)
from memplan.configs.languages.python_style import CONFIG_FUNCTION, statements
from memplan.configs.languages.spans import Edit, Location, Span, appended_lines

_LINE_END = re.compile(r"\r\n|\r|\n")
_COMPUTED = "it is computed"
_ASSEMBLED = "it is assembled from several statements"
_FOLLOW_LIMIT = 20


@dataclass(frozen=True, slots=True)
class _Module:
    body: list[ast.stmt]
    lines: tuple[str, ...]
    line_starts: tuple[int, ...]

    def span(self, node: ast.expr) -> Span:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return Span(start=self._index(node.lineno, node.col_offset), end=self._index(end_line, end_column))

    def _index(self, line: int, utf8_column: int) -> int:
        prefix = self.lines[line - 1].encode()[:utf8_column]
        return self.line_starts[line - 1] + len(prefix.decode())


@lru_cache(maxsize=32)
def _parsed(text: str) -> _Module | None:
    body = statements(text)
    if body is None:
        return None
    starts = [int(text.startswith("\ufeff")), *(match.end() for match in _LINE_END.finditer(text))]
    ends = [*starts[1:], len(text)]
    lines = tuple(text[start:end] for start, end in zip(starts, ends, strict=True))
    return _Module(body, lines, tuple(starts))


def span_of(text: str, node: ast.expr) -> Span:
    """Return where an expression of a valid Python text is written, its own byte order mark not counted."""
    module = _parsed(text)
    return Span(start=0, end=0) if module is None else module.span(node)


def locate_in_python(text: str, key: str) -> Location | None:
    """Find the literal that gives a dotted key its value; None where this file does not mention the key.

    The last assignment wins; a plain name is followed to the one assignment that sets it.
    """
    module = _parsed(text)
    if module is None:
        return None
    name, *rest = key.split(".")
    return _of_name(module, name, tuple(rest), _FOLLOW_LIMIT) or _returned(module, key)


def is_read_elsewhere(text: str, key: str) -> bool:
    """Whether a config itself uses a value elsewhere, so that a change where it is written would change more."""
    parts = tuple(key.split("."))
    nodes = (each for statement in (_parsed(text) or _Module([], (), ())).body for each in ast.walk(statement))
    loads = (
        each for each in nodes if isinstance(each, ast.Attribute | ast.Subscript) and isinstance(each.ctx, ast.Load)
    )
    return any(target_path(each, parts[0]) == parts[1:] for each in loads)


def add_to_python(text: str, entries: dict[str, str]) -> Edit | None:
    """Return the edit that sets new top-level names at the end; None where a key is not a plain name."""
    if not all(each.isidentifier() for each in entries):
        return None
    return appended_lines(text, [f"{name} = {literal}" for name, literal in entries.items()])


def _returned(module: _Module, key: str) -> Location | None:
    """Find a value of the config that ``get_config()`` makes; None where there is no such function."""
    functions = (each for each in module.body if isinstance(each, ast.FunctionDef) and each.name == CONFIG_FUNCTION)
    function = next(functions, None)
    last = None if function is None else function.body[-1]
    if function is None or not isinstance(last, ast.Return) or last.value is None:
        return None
    parts, within = tuple(key.split(".")), replace(module, body=[*module.body, *function.body])
    if isinstance(last.value, ast.Name):
        return _of_name(within, last.value.id, parts, _FOLLOW_LIMIT)
    return _descend(within, last.value, parts, _FOLLOW_LIMIT)


def _of_name(module: _Module, name: str, rest: tuple[str, ...], depth: int) -> Location | None:
    found: Location | None = None
    for binding in bindings(module.body, name):
        length = len(binding.path)
        if binding.value is None:
            touched = rest[:length] == binding.path or binding.path[: len(rest)] == rest
            found = _blocked(module, binding.line, _COMPUTED) if touched else found
        elif rest[:length] == binding.path:
            found = _descend(module, binding.value, rest[length:], depth)
        elif binding.path[: len(rest)] == rest:
            found = _blocked(module, binding.line, _ASSEMBLED)
    return found


def _descend(module: _Module, value: ast.expr, rest: tuple[str, ...], depth: int) -> Location | None:
    if isinstance(value, ast.Name):
        return _followed(module, value, rest, depth)
    default = default_of_field(value)
    if default is not None:
        return _descend(module, default, rest, depth)
    if not rest:
        obstacle = None if _is_literal(value) else _COMPUTED
        return Location(span=module.span(value), line=value.lineno, obstacle=obstacle)
    members, has_unknown = members_of(value)
    for name, member in reversed(members):
        if name == rest[0]:
            return _descend(module, member, rest[1:], depth)
    made = class_called(module.body, value)
    if made is not None and isinstance(value, ast.Call):
        unnamed = dict(zip(parameters_of(module.body, made), value.args, strict=False)).get(rest[0])
        return _of_class(module, made, rest, depth) if unnamed is None else _descend(module, unnamed, rest[1:], depth)
    return _blocked(module, value.lineno, _COMPUTED) if has_unknown else None


def _of_class(module: _Module, made: ast.ClassDef, rest: tuple[str, ...], depth: int) -> Location | None:
    """Find a value of an object in its class, or in the nearest class of the same config that it inherits from."""
    within = replace(module, body=[*module.body, *defaults_of(constructor_of(made))])
    found = _of_name(within, made.name, rest, depth - 1) if depth else None
    bases = (class_named(module.body, each) for each in made.bases) if found is None and depth else ()
    inherited = (_of_class(module, each, rest, depth - 1) for each in bases if each is not None)
    return found or next((each for each in inherited if each is not None), None)


def _followed(module: _Module, value: ast.Name, rest: tuple[str, ...], depth: int) -> Location | None:
    bound = list(bindings(module.body, value.id))
    if len(bound) != 1 or bound[0].path or bound[0].value is None or depth == 0:
        return _blocked(module, value.lineno, _COMPUTED)
    found = _descend(module, bound[0].value, rest, depth - 1)
    return found and replace(found, followed=(".".join((value.id, *rest)), *found.followed))


def _is_literal(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.UnaryOp):
        return isinstance(value.op, ast.USub | ast.UAdd) and isinstance(value.operand, ast.Constant)
    members, has_unknown = members_of(value)
    return not has_unknown and all(_is_literal(member) for _, member in members)


def _blocked(module: _Module, line: int, obstacle: str) -> Location:
    start = module.line_starts[line - 1]
    return Location(span=Span(start=start, end=start), line=line, obstacle=obstacle)
