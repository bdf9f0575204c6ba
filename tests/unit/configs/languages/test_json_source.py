"""Where JSON writes a value."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.configs.languages.json_source import load_json, locate_in_json
from memplan.configs.languages.spans import Edit, splice
from memplan.errors import ConfigError


def test_a_value_is_found_between_tabs_escapes_and_repeats() -> None:
    text = '\ufeff{\r\n\t"a\\u00e9": [1, {"b": 1.5e-3 , "b":\t2}],\r\n\t"c": null}'
    location = locate_in_json(text, "aé.1.b")
    assert location is not None
    assert text[location.span.start : location.span.end] == "2"
    assert location.line == 2
    assert locate_in_json(text, "c.d") is None
    assert locate_in_json(text, "missing") is None


def test_a_container_is_not_a_single_value() -> None:
    location = locate_in_json('{"a": {"b": 1}}', "a")
    assert location is not None
    assert location.obstacle is not None


def test_bad_json_names_its_line() -> None:
    with pytest.raises(ConfigError, match=r"^x:2: invalid JSON"):
        load_json('{"a": 1\n"b": 2}', where="x")


KEYS = st.text('ab"\\é深\n', min_size=1, max_size=3)
SCALARS = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none(), st.text()
)


@given(
    st.dictionaries(KEYS, st.lists(SCALARS, min_size=1), min_size=1),
    st.sampled_from([None, 2, "\t"]),
    st.booleans(),
    st.data(),
)
def test_splicing_one_value_changes_that_value_only(
    values: dict[str, list[object]], indent: int | str | None, ascii_only: bool, data: st.DataObject
) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
    name = data.draw(st.sampled_from(sorted(values)))
    index = data.draw(st.integers(0, len(values[name]) - 1))
    location = locate_in_json(text, f"{name}.{index}")
    assert location is not None
    changed = splice(text, [Edit(span=location.span, text="12345")])
    expected = {
        key: [12345 if key == name and i == index else v for i, v in enumerate(each)] for key, each in values.items()
    }
    assert json.loads(changed) == expected
