"""Values in the spelling of each language."""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from memplan.configs.languages.literals import write_json, write_python, write_yaml
from memplan.errors import PatchError
from memplan.units import without_noise

if TYPE_CHECKING:
    from collections.abc import Callable

RATES = st.floats(1e-12, 1e6).map(without_noise)
WORDS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)


@pytest.mark.parametrize(
    ("value", "like", "expected"),
    [
        (without_noise(2e-4 * 3), "2e-4", "6e-4"),
        (1 / 3, None, "0.3333333333333333"),
        (0.0006, "0.0002", "0.0006"),
        (6e-05, "0.00002", "6e-5"),
        (12, "4", "12"),
        ("bf16", '"fp16"', '"bf16"'),
        ("it's", None, '"it\'s"'),
        ([1, 2], None, "[1, 2]"),
        ((1,), None, "(1,)"),
        ({"type": "A", "b": None}, None, "dict(type='A', b=None)"),
        ({"a-b": True}, None, "{'a-b': True}"),
    ],
)
def test_python_literals_keep_their_notation(value: object, like: str | None, expected: str) -> None:
    assert write_python(value, like=like) == expected


@pytest.mark.parametrize(
    ("value", "like", "expected"),
    [
        (1e-4, "1e-4", "1.0e-4"),
        (1e-4, "0.0002", "0.0001"),
        (4.425, "1e-1", "4.425"),
        (0.4, "5e-2", "0.4"),
        (6e-05, "0.0002", "6.0e-5"),
        (3e7, "1.0e+7", "3.0e+7"),
        (True, "False", "True"),
        (False, "yes", "no"),
        (True, "OFF", "ON"),
        ("no", "'fp16'", "'no'"),
        ("no", "fp16", "'no'"),
        ("bf16", "fp16", "bf16"),
        ("bf16", '"no"', '"bf16"'),
        (None, "x", "null"),
        ([1, 2], None, "[1, 2]"),
    ],
)
def test_yaml_literals_keep_their_notation(value: object, like: str | None, expected: str) -> None:
    assert write_yaml(value, like=like) == expected


@given(RATES, st.sampled_from(["1e-4", "0.1", None]))
def test_every_loader_reads_the_float_that_was_written(value: float, like: str | None) -> None:
    assert ast.literal_eval(write_python(value, like=like)) == value
    assert yaml.safe_load(write_yaml(value, like=like)) == value
    assert isinstance(yaml.safe_load(write_yaml(value, like=like)), float)
    assert json.loads(write_json(value, like=like)) == value


@given(WORDS, st.sampled_from([None, "'a'", '"a"', "a"]))
def test_every_loader_reads_the_text_that_was_written(value: str, like: str | None) -> None:
    assert ast.literal_eval(write_python(value, like=like)) == value
    assert json.loads(write_json(value)) == value


@given(st.text("abnoyes0123 :#'\"-_.", max_size=12), st.sampled_from([None, "'a'", '"a"', "a"]))
def test_yaml_reads_words_back_as_text(value: str, like: str | None) -> None:
    assert yaml.safe_load(f"k: {write_yaml(value, like=like)}") == {"k": value}


def test_what_is_not_plain_data_is_refused() -> None:
    with pytest.raises(PatchError):
        write_python(object())
    with pytest.raises(PatchError):
        write_yaml({"a": 1})


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([None, "1e-4", "0.5"]),
    st.sampled_from([write_python, write_yaml, write_json]),
)
def test_a_float_reads_back_as_the_same_number(value: float, like: str | None, write: Callable[..., str]) -> None:
    assert float(write(value, like=like)) == value
