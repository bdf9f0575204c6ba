"""Work out what a launch script computes with whole numbers: ``STEPS=$((BATCH_SIZE / PER_DEVICE / GPUS))``.

Scripts that hold the batch of an optimizer step derive the accumulation so. Nothing is run: names stand for the numbers
that the script gives them, and the four rules are applied as the shell does, division rounding towards zero.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from typing import TYPE_CHECKING

from memplan.configs.languages.shell_words import Word, assigned_name, literal_behind
from memplan.configs.languages.spans import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ASSIGNED = r"^[ \t]*(?:export[ \t]+)?{name}=\$\(\((?P<sum>[^()\n]*(?:\([^()\n]*\)[^()\n]*)*)\)\)"
_NAME = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_RULES: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda one, other: math.trunc(one / other),
}
_LARGEST = 2**53  # up to which the division of floats is exact


def computed_number(text: str, word: Word) -> int | None:
    """Return what a script computes for a word that is one variable; None where the script does not say enough."""
    name = assigned_name(word)
    found = [] if name is None else list(re.finditer(_ASSIGNED.format(name=re.escape(name)), text, re.MULTILINE))
    if len(found) != 1:
        return None
    try:
        return _number(ast.parse(_NAME.sub(r"\1\2", found[0]["sum"]).strip(), mode="eval").body, text)
    except (SyntaxError, ZeroDivisionError, ValueError, RecursionError):
        return None


def _number(node: ast.expr, text: str) -> int:
    """Work out one part of a sum.

    Raises:
        ValueError: it is something else than the four rules over whole numbers that the script spells out.
    """
    if isinstance(node, ast.BinOp) and type(node.op) in _RULES:
        found = _RULES[type(node.op)](_number(node.left, text), _number(node.right, text))
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        found = node.value
    elif isinstance(node, ast.Name):
        literal = literal_behind(text, Word(span=Span(start=0, end=0), text=f"${node.id}"))
        found = int("" if literal is None else literal.plain)
    else:
        raise ValueError(ast.dump(node))
    if abs(found) > _LARGEST:
        raise ValueError(found)
    return found
