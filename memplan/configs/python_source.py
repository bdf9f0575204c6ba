"""Find where a Python config writes a value, from its syntax tree alone; nothing is executed."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from memplan.configs.spans import Edit, Location, Span, appended_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINE_END = re.compile(r"\r\n|\r|\n")
_MUTATORS = frozenset({"append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"})
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


@dataclass(frozen=True, slots=True)
class _Binding:
    """One statement that sets a name, or a part of it, or does something to it that only running it would tell."""

    line: int
    path: tuple[str, ...]
    value: ast.expr | None


@lru_cache(maxsize=32)
def _parsed(text: str) -> _Module | None:
    mark = 1 if text.startswith("\ufeff") else 0
    try:
        tree = ast.parse(text[mark:])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    starts = [mark, *(match.end() for match in _LINE_END.finditer(text))]
    ends = [*starts[1:], len(text)]
    lines = tuple(text[start:end] for start, end in zip(starts, ends, strict=True))
    return _Module(tree.body, lines, tuple(starts))


def locate_in_python(text: str, key: str) -> Location | None:
    """Find the literal that gives a dotted key its value; None where this file does not mention the key.

    The last assignment wins; a plain name is followed to the one assignment that sets it.
    """
    module = _parsed(text)
    name, *rest = key.split(".")
    return None if module is None else _of_name(module, name, tuple(rest), _FOLLOW_LIMIT)


def add_to_python(text: str, entries: dict[str, str]) -> Edit | None:
    """Return the edit that sets new top-level names at the end; None where a key is not a plain name."""
    if not all(each.isidentifier() for each in entries):
        return None
    return appended_lines(text, [f"{name} = {literal}" for name, literal in entries.items()])


def _of_name(module: _Module, name: str, rest: tuple[str, ...], depth: int) -> Location | None:
    found: Location | None = None
    for binding in _bindings(module.body, name):
        length = len(binding.path)
        if binding.value is None:
            found = _blocked(module, binding.line, _COMPUTED)
        elif rest[:length] == binding.path:
            found = _descend(module, binding.value, rest[length:], depth)
        elif binding.path[: len(rest)] == rest:
            found = _blocked(module, binding.line, _ASSEMBLED)
    return found


def _descend(module: _Module, value: ast.expr, rest: tuple[str, ...], depth: int) -> Location | None:
    if isinstance(value, ast.Name):
        return _followed(module, value, rest, depth)
    if not rest:
        obstacle = None if _is_literal(value) else _COMPUTED
        return Location(span=module.span(value), line=value.lineno, obstacle=obstacle)
    members, has_unknown = _members(value)
    for name, member in reversed(members):
        if name == rest[0]:
            return _descend(module, member, rest[1:], depth)
    return _blocked(module, value.lineno, _COMPUTED) if has_unknown else None


def _followed(module: _Module, value: ast.Name, rest: tuple[str, ...], depth: int) -> Location | None:
    bindings = list(_bindings(module.body, value.id))
    if len(bindings) != 1 or bindings[0].path or bindings[0].value is None or depth == 0:
        return _blocked(module, value.lineno, _COMPUTED)
    found = _descend(module, bindings[0].value, rest, depth - 1)
    return found and replace(found, followed=(".".join((value.id, *rest)), *found.followed))


def _members(value: ast.expr) -> tuple[list[tuple[str, ast.expr]], bool]:
    """Return a literal container's members by name, and whether it may have others."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict":
        named = [(each.arg, each.value) for each in value.keywords if each.arg is not None]
        return named, bool(value.args) or len(named) < len(value.keywords)
    if isinstance(value, ast.Dict):
        constant = [
            (str(key.value), member)
            for key, member in zip(value.keys, value.values, strict=True)
            if isinstance(key, ast.Constant)
        ]
        complete = len(constant) == len(value.keys)
        return (constant, False) if complete else ([], True)
    if isinstance(value, ast.List | ast.Tuple) and not any(isinstance(each, ast.Starred) for each in value.elts):
        return [(str(index), member) for index, member in enumerate(value.elts)], False
    return [], True


def _is_literal(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.UnaryOp):
        return isinstance(value.op, ast.USub | ast.UAdd) and isinstance(value.operand, ast.Constant)
    members, has_unknown = _members(value)
    return not has_unknown and all(_is_literal(member) for _, member in members)


def _blocked(module: _Module, line: int, obstacle: str) -> Location:
    start = module.line_starts[line - 1]
    return Location(span=Span(start=start, end=start), line=line, obstacle=obstacle)


def _bindings(body: list[ast.stmt], name: str) -> Iterator[_Binding]:
    for statement in body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from _from_target(statement, target, statement.value, name)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield from _from_target(statement, statement.target, statement.value, name)
        elif _touches(statement, name):
            yield _Binding(statement.lineno, (), None)


def _from_target(statement: ast.stmt, target: ast.expr, value: ast.expr, name: str) -> Iterator[_Binding]:
    path = _target_path(target, name)
    if path is not None:
        yield _Binding(statement.lineno, path, value)
    elif _touches(target, name):
        yield _Binding(statement.lineno, (), None)


def _target_path(target: ast.expr, name: str) -> tuple[str, ...] | None:
    if isinstance(target, ast.Name):
        return () if target.id == name else None
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        outer, part = _target_path(target.value, name), str(target.slice.value)
    elif isinstance(target, ast.Attribute):
        outer, part = _target_path(target.value, name), target.attr
    else:
        return None
    return None if outer is None else (*outer, part)


def _touches(node: ast.AST, name: str) -> bool:
    """Whether a piece of code stores to a name, into what it holds, or calls something that changes it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Import | ast.ImportFrom):
        return any((each.asname or each.name.partition(".")[0]) in (name, "*") for each in node.names)
    if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
        return _root(node) == name
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
        return _root(node.func) == name or any(_touches(child, name) for child in ast.iter_child_nodes(node))
    return any(_touches(child, name) for child in ast.iter_child_nodes(node))


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
