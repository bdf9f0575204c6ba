"""Reading YAML, and where it writes a value."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from memplan.configs.languages.spans import splice
from memplan.configs.languages.yaml_source import add_to_yaml, load_yaml, locate_in_yaml
from memplan.errors import ConfigError


def written(text: str, key: str) -> str:
    location = locate_in_yaml(text, key)
    assert location is not None
    assert location.obstacle is None
    return text[location.span.start : location.span.end]


@pytest.mark.parametrize(
    ("text", "value"),
    [("3e-4", 3e-4), ("3.0e-4", 3e-4), ("-1_0E2", -1000.0), ("2.5e3", 2500.0), ("'3e-4'", "3e-4"), ("1e", "1e")],
)
def test_numbers_with_an_exponent_are_numbers_unless_quoted(text: str, value: object) -> None:
    found = load_yaml(f"lr: {text}\n", where="x.yaml")["lr"]
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("a:\n  b: 4  # four\n", "4"),
        ("a: {b: 4}", "4"),
        ("a:\n  b: &size 4\n", "4"),
        ("a:\n  b: !!int 4\n", "4"),
        ('a:\r\n  b: "x"\r\n', '"x"'),
        ("\ufeffa:\n  b: 4", "4"),
        ("a:\n  b: 1\n  b: 2\n", "2"),
        ("é: 深\na:\n  b: 4\n", "4"),
        ("a:\n  b:\n  c: 1\n", ""),
    ],
)
def test_a_scalar_is_found_where_it_is_written(text: str, literal: str) -> None:
    assert written(text, "a.b") == literal


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("x: &x {b: 4}\na: *x\n", "alias"),
        ("base: &base {a: {b: 4}}\n<<: *base\n", "merge key"),
        ("a:\n  b: ${size}\n", "interpolation"),
        ("a:\n  b: |\n    4\n", "block"),
        ("a:\n  b: [1, 2]\n", "single value"),
    ],
)
def test_what_is_not_a_value_of_its_own_is_not_editable(text: str, part: str) -> None:
    location = locate_in_yaml(text, "a.b")
    assert location is not None
    assert part in str(location.obstacle)


@pytest.mark.parametrize(
    ("text", "written_here", "repeated", "is_added"),
    [
        ("x: &x 4\na:\n  b: *x  # as x\n", "*x", "4", False),
        ("x: &x 4\na: {c: 1, 'b' : *x}\n", "*x", "4", False),
        ("base: &base {b: 4}\na:\n  <<: *base\n", "", "4", True),
    ],
)
def test_a_value_that_repeats_another_has_a_place_of_its_own(
    text: str, written_here: str, repeated: str, *, is_added: bool
) -> None:
    location = locate_in_yaml(text, "a.b")
    assert location is not None
    assert location.repeats is not None
    assert text[location.span.start : location.span.end] == written_here
    assert text[location.repeats.start : location.repeats.end] == repeated
    assert (location.obstacle, location.is_added) == (None, is_added)


def test_tags_are_not_constructed() -> None:
    values = load_yaml("a: !!python/object/apply:os.getcwd []\nb: !env HOME\nc: 2024-01-01\n", where="x")
    assert values["b"] == "HOME"
    assert values["c"] == "2024-01-01"
    assert isinstance(values["a"], str)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [1", "x:1: invalid YAML"),
        ("a: 1\nb: 'x\n", "x:3: invalid YAML"),
        ("a: 1\n---\nb: 2\n", "x:2: it holds several documents; name a file of one"),
        ("a: &a [*a]\n", "x:1: an alias refers to what contains it"),
        ("# nothing\n", "x: the file is empty"),
        ("a: \x07", "x: invalid YAML"),
        ("[" * 5000, "x: it is nested too deeply"),
    ],
)
def test_bad_yaml_is_one_clear_line(text: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_yaml(text, where="x")
    assert str(caught.value).startswith(part)


def test_many_values_without_aliases_are_read() -> None:
    assert len(load_yaml("a: [" + ", ".join(["1"] * 30_000) + "]", where="x")["a"]) == 30_000


KEYS = st.sampled_from(["alpha", "beta", "gamma"])
SCALARS = st.one_of(st.integers(-99, 99), st.booleans(), st.text("aé深 :#'\"", min_size=1, max_size=5), st.none())


@pytest.mark.parametrize(
    "section", ["x: &x 1\na: {b: *x}\n", "x: &x\n  b: 1\na: *x\n", "a:\n", "a: {}\n", "b: 1\n", "a:\n- b: 1\n"]
)
def test_a_section_of_another_form_takes_no_new_keys(section: str) -> None:
    assert add_to_yaml(section, {"a.c": "2"}) is None


@given(
    st.dictionaries(
        KEYS, st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(KEYS, SCALARS)), min_size=1
    ),
    st.sampled_from(["", "\n", "  # said\n", "\nlast: 1\n"]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_adding_to_a_section_adds_that_and_nothing_else(
    values: dict[str, object], ending: str, newline: str, flow: bool
) -> None:
    made = {"first": {"a": 1}, "section": values}
    text = yaml.safe_dump(made, allow_unicode=True, sort_keys=False)
    if flow:
        inner = yaml.safe_dump(values, allow_unicode=True, sort_keys=False, default_flow_style=True, width=4000)
        text = f"first: {{a: 1}}\nsection: {inner}"
    text = (text.removesuffix("\n") + ending).replace("\n", newline)
    before = yaml.safe_load(text)
    edit = add_to_yaml(text, {"section.new": "2", "section.other": "off"})
    assert edit is not None
    after = yaml.safe_load(splice(text, [edit]))
    assert after == {**before, "section": {**before["section"], "new": 2, "other": False}}


def test_a_key_that_is_set_twice_is_named_with_its_lines() -> None:
    notes: list[str] = []
    text = "base: &base\n  lr: 1\ndata:\n  size: 8\n  size: 16\nopt:\n  <<: *base\n  lr: 2\ndata: {size: 32}\n"
    assert load_yaml(text, where="/x/y.yaml", notes=notes)["data"] == {"size": 32}
    assert notes == [
        "data.size is set in lines 4 and 5 of y.yaml, and the last counts",
        "data is set in lines 3 and 9 of y.yaml, and the last counts",
    ]
