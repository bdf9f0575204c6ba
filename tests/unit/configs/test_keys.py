"""Dotted keys into nested values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.configs.keys import (
    contains,
    differences,
    followed,
    get,
    lookup,
    merged,
    near_matches,
    nested_under,
    with_value,
)

VALUES = {"a": {"b": [1, {"c": 2}], "d": None}, 5: "five", "e": "text"}
KEYS = st.text("abc", min_size=1, max_size=2)
TREES = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.floats(), st.none()),
    lambda children: st.one_of(st.lists(children, max_size=3), st.dictionaries(KEYS, children, max_size=3)),
    max_leaves=8,
)


def test_keys_reach_into_dicts_lists_and_numbers() -> None:
    assert lookup(VALUES, "a.b.1.c") == 2
    assert lookup(VALUES, "5") == "five"
    assert get(VALUES, "a.d") is None
    assert contains(VALUES, "a.d")


@pytest.mark.parametrize("key", ["x", "a.b.7", "a.b.c", "e.0", "a.d.x"])
def test_what_is_not_there_is_a_key_error(key: str) -> None:
    assert not contains(VALUES, key)
    with pytest.raises(KeyError):
        lookup(VALUES, key)


def test_a_new_value_leaves_the_old_values_alone() -> None:
    changed = with_value(VALUES, "a.b.1.c", 3)
    assert lookup(changed, "a.b.1.c") == 3
    assert lookup(VALUES, "a.b.1.c") == 2
    assert with_value({}, "a.b", 1) == {"a": {"b": 1}}
    assert with_value({5: 1}, "5", 2) == {5: 2}
    assert with_value({"a": (1, 2)}, "a.0", 3) == {"a": (3, 2)}


@given(st.dictionaries(KEYS, TREES, min_size=1))
def test_values_differ_from_none_but_themselves(values: dict[str, object]) -> None:
    assert not [*differences(values, values)]
    for key in values:
        changed = with_value(values, key, "something else")
        assert [*differences(values, changed)]


@pytest.mark.parametrize(
    ("one", "other", "key"),
    [
        ({"a": 1}, {"a": 1.0}, "a"),
        ({"a": True}, {"a": 1}, "a"),
        ({"a": [1, 2]}, {"a": (1, 2)}, "a"),
        ({"a": {"b": 1}}, {"a": {}}, "a.b"),
        ({"a": [1]}, {"a": [1, 2]}, "a.1"),
        ({"a": float("nan")}, {"a": float("nan")}, None),
    ],
)
def test_the_first_difference_is_named(one: object, other: object, key: str | None) -> None:
    assert next(differences(one, other), None) == key


def test_near_matches_prefer_the_same_last_part() -> None:
    values = {"optimizer": {"lr": 1}, "data": {"batch_size": 4, "batch_sizes": 5}}
    assert near_matches(values, "optim.lr")[0] == "optimizer.lr"
    assert near_matches(values, "data.batchsize")[0] in ("data.batch_size", "data.batch_sizes")


def test_interpolations_are_followed_and_circles_end() -> None:
    assert followed({"a": "${b.c}", "b": {"c": "${d}"}, "d": 1}, "a") == "d"
    assert followed({"a": "${oc.env:HOME}"}, "a") == "a"
    assert followed({"a": "${b}", "b": "${a}"}, "a") in ("a", "b")


def test_laying_over_merges_dicts_and_replaces_all_else() -> None:
    assert merged({"a": {"b": 1, "c": [1, 2]}}, {"a": {"c": [3]}, "d": None}) == {"a": {"b": 1, "c": [3]}, "d": None}
    assert merged({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}


@given(st.dictionaries(KEYS, TREES), st.dictionaries(KEYS, TREES))
def test_what_is_laid_over_wins_and_laying_it_again_changes_nothing(
    base: dict[str, object], over: dict[str, object]
) -> None:
    laid = merged(base, over)
    assert not [*differences(laid, merged(laid, over))]
    assert set(laid) == {*base, *over}
    assert all(not [*differences(laid[key], base[key])] for key in base if key not in over)


def test_values_are_put_below_a_dotted_prefix() -> None:
    assert nested_under("a.b", {"c": 1}) == {"a": {"b": {"c": 1}}}
    assert nested_under("", {"c": 1}) == {"c": 1}
