"""Docstrings name the parameters that there are, in their order, and the errors that are raised."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.test_architecture import offences, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def documented(docstring: str) -> list[str]:
    """The names that a docstring's ``Args`` explain."""
    section = docstring.partition("Args:\n")[2].partition("\n\n")[0]
    return re.findall(r"^    (\w+):", section, re.MULTILINE)


def parameters(function: ast.FunctionDef) -> list[str]:
    given = function.args
    every = (*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg)
    return [each.arg for each in every if each is not None and each.arg not in ("self", "cls")]


def taken_by(kind: ast.ClassDef) -> list[str]:
    """What an instance is made of: the parameters of ``__init__``, else the fields."""
    made = [each for each in kind.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    if made:
        return parameters(made[0])
    fields = (each.target for each in kind.body if isinstance(each, ast.AnnAssign))
    return [each.id for each in fields if isinstance(each, ast.Name)]


def with_arguments(tree: ast.Module) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield name, documented and real arguments of what documents any."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and "Args:" in (text := ast.get_docstring(node) or ""):
            yield node.name, documented(text), taken_by(node) if isinstance(node, ast.ClassDef) else parameters(node)


def public_functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    for each in body:
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
            yield each
        elif isinstance(each, ast.ClassDef) and not each.name.startswith("_"):
            yield from public_functions(each.body)


def raises(function: ast.FunctionDef) -> bool:
    """Whether a function itself raises an error, not one that it lets pass or a function within it."""
    pending: list[ast.AST] = [*function.body]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Raise) and node.exc is not None:
            return True
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)
    return False


def test_what_is_documented_and_what_is_raised_is_told() -> None:
    tree = ast.parse(
        "def made(self, first, *rest, second, **more):\n"
        '    """Make.\n\n    Args:\n        first: one.\n            Or two.\n        second: three.\n    """\n'
        "    def inner():\n        raise KeyError\n"
        "def failing(): raise KeyError('x')\n"
    )
    assert list(with_arguments(tree)) == [("made", ["first", "second"], ["first", "rest", "second", "more"])]
    assert [raises(each) for each in public_functions(tree.body)] == [False, True]


def test_documented_arguments_are_those_there_are_in_their_order() -> None:
    def others(path: Path) -> Iterator[str]:
        return (f"{name}: {told}, not {real}" for name, told, real in with_arguments(tree_of(path)) if told != real)

    assert offences(others) == []


def test_public_functions_that_raise_say_so() -> None:
    def silent(path: Path) -> Iterator[str]:
        functions = public_functions(tree_of(path).body)
        return (each.name for each in functions if raises(each) and "Raises:" not in (ast.get_docstring(each) or ""))

    assert offences(silent) == []
