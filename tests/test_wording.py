"""Problems, hints, notes and what is not counted are phrases, which stand behind a label or a colon.

Sentences are left to reasons, to the help of commands, and to comments that are written into configs.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.test_architecture import PACKAGE, offences

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WITH_SENTENCES = (
    "cli",
    "recommend",
    "report",
    "planning/absent.py",
    "planning/micro_batch_cap.py",
    "planning/present.py",
    "planning/recommendation.py",
)
SENTENCE = re.compile(r".* .*[\w)}'\"`]\.", re.DOTALL)


def texts_of(source: str) -> Iterator[str]:
    """Every string of a module but docstrings; what is filled into one reads ``{}``."""
    tree = ast.parse(source)
    expressions = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    parts = (part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values)
    left_out = {*expressions, *parts}
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def sentences_in(source: str) -> list[str]:
    return [each for each in texts_of(source) if SENTENCE.fullmatch(each) and not each.startswith("# ")]


def test_a_sentence_is_told_by_its_full_stop() -> None:
    source = '"""A docstring."""\nfirst, second, third = "It is so.", f"it is {so}", f"it is {so}."'
    assert sentences_in(source) == ["It is so.", "it is {}."]


def test_what_stands_behind_a_label_is_a_phrase() -> None:
    def sentences(path: Path) -> list[str]:
        told = str(path.relative_to(PACKAGE)).startswith(WITH_SENTENCES)
        return [] if told else sentences_in(path.read_text(encoding="utf-8"))

    assert offences(sentences) == []
