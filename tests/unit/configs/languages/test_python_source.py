"""Where a Python config writes a value."""

from __future__ import annotations

import pytest

from memplan.configs.languages.python_source import locate_in_python


def written(text: str, key: str) -> str | None:
    location = locate_in_python(text, key)
    assert location is not None
    return text[location.span.start : location.span.end] if location.obstacle is None else None


@pytest.mark.parametrize(
    ("text", "key", "literal"),
    [
        ("data = dict(samples_per_gpu=4, workers=2)", "data.samples_per_gpu", "4"),
        ("data = {'samples_per_gpu': 4}", "data.samples_per_gpu", "4"),
        ("a = dict(b=dict(c=[dict(d=1), dict(d=2)]))", "a.b.c.1.d", "2"),
        ("lr = 1e-4\noptimizer = dict(lr=lr)", "optimizer.lr", "1e-4"),
        ("base = dict(lr=3)\noptimizer = base", "optimizer.lr", "3"),
        ("lr = 1\nlr = 2", "lr", "2"),
        ("data = dict(a=1)\ndata['a'] = 5", "data.a", "5"),
        ("x = dict(a=-1)", "x.a", "-1"),
        ("lr: float = 0.5", "lr", "0.5"),
        ("d = {'a': 1, 'a': 2}", "d.a", "2"),
        ("a = b = 7", "b", "7"),
        ("d = dict(a=(4))", "d.a", "4"),
    ],
)
def test_a_literal_is_found_where_it_is_written(text: str, key: str, literal: str) -> None:
    assert written(text, key) == literal


@pytest.mark.parametrize(
    "text",
    [
        "total = 8\ndata = dict(a=total // 2)",
        "data = dict(a=1)\ndata.update(other)",
        "data = dict(a=1)\nif True:\n    data['a'] = 2",
        "data = dict(a=1)\ndata['a'] += 1",
        "n = 1\nn = 2\ndata = dict(a=n)",
        "data = dict(**other)",
        "data = make()",
        "for data in []:\n    pass",
        "data = dict(a={{_base_.b}})",
        "from somewhere import data",
        "data = dict(a=data_a)",
    ],
)
def test_what_is_computed_is_not_editable(text: str) -> None:
    assert written(text, "data.a") is None


@pytest.mark.parametrize("text", ["other = 1", "data = dict(b=1)", "data = dict(", "def f():\n    data = dict(a=1)"])
def test_a_key_the_file_does_not_set_is_not_found(text: str) -> None:
    assert locate_in_python(text, "data.a") is None


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_offsets_count_characters_in_any_line_ending_and_alphabet(newline: str) -> None:
    text = newline.join(["# Tiefenschätzung 深度", "s = 'ü深'; data = dict(a='é', b=4)  # 注", ""])
    assert written(text, "data.b") == "4"
    assert written("\ufeff" + text, "data.b") == "4"


def test_a_form_feed_is_no_line_end() -> None:
    assert written("x = 1\n\x0c\ndata = dict(a=4)\n", "data.a") == "4"
