"""Evaluate the integer arithmetic of a launch script: ``STEPS=$((BATCH_SIZE / PER_DEVICE / GPUS))``.

Scripts that set the batch of an optimizer step derive the accumulation this way. Nothing is run: names take the numbers
that the script or the environment gives them, and the four operations work as in the shell, division rounding
towards zero.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from typing import TYPE_CHECKING

from memplan.configs.languages.shell_variables import assigned_name, name_left_open, value_behind, value_of
from memplan.configs.languages.shell_words import Word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SUM = re.compile(r"\$\(\((?P<sum>[^()\n]*(?:\([^()\n]*\)[^()\n]*)*)\)\)")
_NAME = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_RULES: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda one, other: math.trunc(one / other),
}
_LARGEST = 2**53  # up to which the division of floats is exact


def computed_number(text: str, word: Word) -> int | None:
    """Return the number that a script computes for a word or a variable; None where it does not say enough."""
    value = _sum_behind(text, word)
    try:
        return None if value is None else _number(_parsed(value), text, value)
    except (SyntaxError, ZeroDivisionError, ValueError, RecursionError):
        return None


def names_left_open(text: str, word: Word) -> tuple[str, ...]:
    """Return the variables of a word's arithmetic that the script takes from its environment."""
    own, value = name_left_open(text, word), _sum_behind(text, word)
    try:
        nodes = [] if value is None else [each for each in ast.walk(_parsed(value)) if isinstance(each, ast.Name)]
    except (SyntaxError, ValueError, RecursionError):
        nodes = []
    inner = [name_left_open(text, _word_for(each, value or word)) for each in nodes]
    return tuple(dict.fromkeys(each for each in (own, *inner) if each is not None))


def _sum_behind(text: str, word: Word) -> Word | None:
    """Return the arithmetic expression of a word, or of the variable it names; None where there is none."""
    name = assigned_name(word)
    value = word if name is None else value_of(text, name)
    is_sum = value is not None and value.span.start <= word.span.start and _SUM.fullmatch(value.text.strip('"'))
    return value if is_sum else None


def _parsed(word: Word) -> ast.expr:
    """Return the syntax tree of an arithmetic expression.

    Raises:
        SyntaxError: it is more than Python and the shell have in common.
    """
    inner = word.text.strip('"').removeprefix("$((").removesuffix("))")
    return ast.parse(_NAME.sub(r"\1\2", inner).strip(), mode="eval").body


def _word_for(name: ast.Name, within: Word) -> Word:
    return Word(span=within.span, text=f"${name.id}")


def _number(node: ast.expr, text: str, within: Word) -> int:
    """Evaluate one part of an expression.

    Raises:
        ValueError: it is not one of the four operations on whole numbers that the script spells out.
    """
    if isinstance(node, ast.BinOp) and type(node.op) in _RULES:
        found = _RULES[type(node.op)](_number(node.left, text, within), _number(node.right, text, within))
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        found = node.value
    elif isinstance(node, ast.Name):
        found = int(value_behind(text, _word_for(node, within)) or "")
    else:
        raise ValueError(ast.dump(node))
    if abs(found) > _LARGEST:
        raise ValueError(found)
    return found
