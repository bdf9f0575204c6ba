"""Errors for texts that a config language does not allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from memplan.configs.languages.invalid_text import invalid_text
from memplan.configs.languages.json_source import load_json
from memplan.configs.languages.toml_source import load_toml
from memplan.configs.languages.yaml_source import load_yaml
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("load", "text", "said"),
    [
        (load_yaml, "a: 1\nb: 4: c\n", "x:2: invalid YAML: mapping values are not allowed here: b: 4: c; correct"),
        (load_json, '{"a" 1}', "x:1: invalid JSON: Expecting ':' delimiter: {\"a\" 1}; correct"),
        (load_toml, "a = 1\nb = \n", "x:2: invalid TOML: Invalid value: b =; correct"),
    ],
)
def test_the_line_at_fault_is_named_and_quoted(load: Callable[..., Any], text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text, where="x")
    assert str(caught.value).startswith(said)


def test_a_long_line_is_named_and_not_quoted() -> None:
    assert str(invalid_text("JSON", "no", "1" * 81, where="x", line=1)) == (
        "x:1: invalid JSON: no; correct this line, or the one before it"
    )


def test_a_line_after_the_last_is_named() -> None:
    assert str(invalid_text("YAML", "no", "a\n", where="x", line=2)).startswith("x:2: invalid YAML: no; correct")
