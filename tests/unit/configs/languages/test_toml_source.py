"""Where values stand in TOML."""

from __future__ import annotations

import pytest

from memplan.configs.languages.spans import splice
from memplan.configs.languages.toml_source import add_to_toml, load_toml, locate_in_toml

TEXT = '''\
title = "a [b] = 3 # no comment"  # a = 1
a.b = 1
"quoted" . 'key' = 2

[data] # batch_size = 9
batch_size = 4# of one card
sizes = [ 1, [2, 3], # comment ]
  4 ]
inline = { x = "}", y.z = 5 , w = [6, {v = 7}] }
long = """
batch_size = 8
"""

[[stage]]
lr = 1e-3
[[stage]]
lr = 2e-3
[stage.inner]
x = 1979-05-27 07:32:00
'''


@pytest.mark.parametrize(
    ("key", "literal"),
    [
        ("a.b", "1"),
        ("quoted.key", "2"),
        ("data.batch_size", "4"),
        ("data.sizes.1.0", "2"),
        ("data.sizes.2", "4"),
        ("data.inline.y.z", "5"),
        ("data.inline.w.1.v", "7"),
        ("stage.0.lr", "1e-3"),
        ("stage.1.lr", "2e-3"),
        ("stage.1.inner.x", "1979-05-27 07:32:00"),
        ("title", '"a [b] = 3 # no comment"'),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_value_is_found_where_it_is_written(key: str, literal: str, newline: str) -> None:
    text = TEXT.replace("\n", newline)
    found = locate_in_toml(text, key)
    assert found is not None
    assert text[found.span.start : found.span.end] == literal
    assert found.obstacle is None


def test_what_is_no_single_value_says_so() -> None:
    obstacles = {key: locate_in_toml(TEXT, key) for key in ("data.sizes", "data.inline", "data.long")}
    assert [each.obstacle for each in obstacles.values() if each is not None] == [
        "it is not a single value",
        "it is not a single value",
        "it is a block of text",
    ]


def test_a_key_that_is_not_there_has_no_place() -> None:
    assert locate_in_toml(TEXT, "data.nothing") is None


def test_new_keys_come_behind_the_last_value_of_their_table() -> None:
    edit = add_to_toml(TEXT, {"data.steps": "2", "data.amp": "true"})
    assert edit is not None
    values = load_toml(splice(TEXT, [edit]), where="x")
    assert values["data"] | {"steps": 2, "amp": True} == values["data"]
    assert load_toml(TEXT, where="x")["stage"] == values["stage"]


def test_a_table_that_is_not_there_is_not_made() -> None:
    assert add_to_toml(TEXT, {"nowhere.steps": "2"}) is None
