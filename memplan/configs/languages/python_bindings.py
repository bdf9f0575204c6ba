"""What the statements of a Python config do to its names, from its syntax tree alone; nothing is executed."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.configs.languages.python_style import is_read_base

if TYPE_CHECKING:
    from collections.abc import Iterator

_MUTATORS = frozenset({"append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"})


@dataclass(frozen=True, slots=True)
class Binding:
    """One statement that sets a name or a part of it, or changes it in a way that only running it would show."""

    line: int
    path: tuple[str, ...]
    value: ast.expr | None


def bindings(body: list[ast.stmt], name: str) -> Iterator[Binding]:
    """Yield, in order, what the statements of a config do to a name."""
    for statement in body:
        if _imports_configs(statement):
            continue
        updated = list(_from_update(statement, name))
        yield from updated
        if updated:
            continue
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from _from_target(statement, target, statement.value, name)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield from _from_target(statement, statement.target, statement.value, name)
        elif isinstance(statement, ast.AugAssign) and target_path(statement.target, name) is not None:
            yield Binding(statement.lineno, target_path(statement.target, name) or (), None)
        elif isinstance(statement, ast.ClassDef) and statement.name == name:
            yield from _from_class(statement, ())
        elif _touches(statement, name):
            yield Binding(statement.lineno, (), None)


def class_called(body: list[ast.stmt], value: ast.expr) -> ast.ClassDef | None:
    """Return the class of the same config of which an expression makes an object, every argument spelled out."""
    if not isinstance(value, ast.Call) or any(each.arg is None for each in value.keywords):
        return None
    return None if any(isinstance(each, ast.Starred) for each in value.args) else class_named(body, value.func)


def parameters_of(body: list[ast.stmt], made: ast.ClassDef) -> list[str]:
    """Return the names of the arguments that an object of a class is made of, in order."""
    constructor = constructor_of(made)
    if constructor is not None:
        return [each.arg for each in constructor.args.args[1:]]
    above = body[: body.index(made)]
    bases = (class_named(above, each) for each in made.bases)
    inherited = [name for each in bases if each is not None for name in parameters_of(above, each)]
    fields = (each.target for each in made.body if isinstance(each, ast.AnnAssign))
    return list(dict.fromkeys([*inherited, *(each.id for each in fields if isinstance(each, ast.Name))]))


def constructor_of(made: ast.ClassDef) -> ast.FunctionDef | None:
    """Return the ``__init__`` that a class defines itself, or None."""
    return next((each for each in made.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)


def defaults_of(function: ast.FunctionDef | None) -> list[ast.stmt]:
    """Return the defaults of a function's arguments, as statements that assign them."""
    if function is None:
        return []
    named = function.args
    pairs = [*zip(reversed([*named.posonlyargs, *named.args]), reversed(named.defaults), strict=False)]
    pairs += [(each, value) for each, value in zip(named.kwonlyargs, named.kw_defaults, strict=True) if value]
    return [ast.copy_location(ast.Assign([ast.Name(each.arg, ast.Store())], value), value) for each, value in pairs]


def class_named(body: list[ast.stmt], value: ast.expr) -> ast.ClassDef | None:
    """Return the class of the same config that an expression names, or None."""
    name = value.id if isinstance(value, ast.Name) else None
    return next((each for each in body if isinstance(each, ast.ClassDef) and each.name == name), None)


def default_of_field(value: ast.expr) -> ast.expr | None:
    """Return the default in a ``field(default=8)`` of a dataclass or a ``Field(8)`` of pydantic; None for all else."""
    function = value.func if isinstance(value, ast.Call) else None
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if not isinstance(value, ast.Call) or str(name).lower() != "field":
        return None
    named = {each.arg: each.value for each in value.keywords}
    factory = named.get("default_factory")
    if isinstance(factory, ast.Lambda):
        return factory.body
    if factory is not None:
        return ast.copy_location(ast.Call(factory, [], []), factory)
    return named.get("default", value.args[0] if value.args else None)


def _from_class(made: ast.ClassDef, path: tuple[str, ...]) -> Iterator[Binding]:
    """Yield what the body of a class and its ``__init__`` set; its other methods set nothing."""
    for statement in made.body:
        if isinstance(statement, ast.ClassDef):
            yield from _from_class(statement, (*path, statement.name))
        elif isinstance(statement, ast.FunctionDef) and statement is constructor_of(made) and statement.args.args:
            found = bindings(statement.body, statement.args.args[0].arg)
            yield from (Binding(each.line, (*path, *each.path), each.value) for each in found)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [each.id for each in targets if isinstance(each, ast.Name) and statement.value is not None]
            yield from (Binding(statement.lineno, (*path, each), statement.value) for each in names)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.Expr | ast.Pass):
            yield Binding(statement.lineno, path, None)


def _imports_configs(statement: ast.stmt) -> bool:
    """Whether a statement takes names from another config file, where they are looked for next."""
    return is_read_base(statement) or (isinstance(statement, ast.ImportFrom) and statement.level > 0)


def _from_update(statement: ast.stmt, name: str) -> Iterator[Binding]:
    """Yield what ``name.update(a=1, b=dict(c=2))`` sets, value by value; nothing for any other statement."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "update":
        return
    path = target_path(call.func.value, name)
    if path is None or call.args or any(each.arg is None for each in call.keywords):
        return
    for keyword in call.keywords:
        yield from _leaves(statement.lineno, (*path, str(keyword.arg)), keyword.value)


def _leaves(line: int, path: tuple[str, ...], value: ast.expr) -> Iterator[Binding]:
    is_dict = isinstance(value, ast.Dict) or (isinstance(value, ast.Call) and not value.args)
    members, has_unknown = members_of(value) if is_dict else ([], True)
    if has_unknown or not members:
        yield Binding(line, path, value)
    for part, member in () if has_unknown else members:
        yield from _leaves(line, (*path, part), member)


def _from_target(statement: ast.stmt, target: ast.expr, value: ast.expr, name: str) -> Iterator[Binding]:
    path = target_path(target, name)
    if path is not None:
        yield Binding(statement.lineno, path, value)
    elif _touches(target, name):
        yield Binding(statement.lineno, (), None)


def target_path(target: ast.expr, name: str) -> tuple[str, ...] | None:
    """Return the path of members in an expression such as ``name.a["b"]``; None for any other expression."""
    if isinstance(target, ast.Name):
        return () if target.id == name else None
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        outer, part = target_path(target.value, name), str(target.slice.value)
    elif isinstance(target, ast.Attribute):
        outer, part = target_path(target.value, name), target.attr
    else:
        return None
    return None if outer is None else (*outer, part)


def _touches(node: ast.AST, name: str) -> bool:
    """Whether a piece of code assigns to a name or a part of its value, or calls something that changes it."""
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


def members_of(value: ast.expr) -> tuple[list[tuple[str, ast.expr]], bool]:
    """Return the members of a literal container or a call's arguments by name, and whether there may be others."""
    if isinstance(value, ast.Call):
        named = [(each.arg, each.value) for each in value.keywords if each.arg is not None]
        if len(value.args) == 1 and not isinstance(value.args[0], ast.List | ast.Tuple):
            named = [*members_of(value.args[0])[0], *named]
        return named, bool(value.args) or len(named) < len(value.keywords) or not _makes_dict(value.func)
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


def _makes_dict(function: ast.expr) -> bool:
    """Whether a call makes a dict of its keyword arguments: ``dict(...)`` or detectron2's ``L(target)(...)``."""
    return isinstance(function, ast.Call) or (isinstance(function, ast.Name) and function.id == "dict")
