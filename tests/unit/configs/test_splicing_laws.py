"""A splice changes one value and no other byte, in every language and however the file is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from memplan.configs.keys import differences, lookup, with_value
from memplan.configs.languages.registry import JSON, PYTHON, SHELL, TOML, YAML, Language
from memplan.configs.languages.spans import Edit, splice

NAMES = st.text("abcxyz_", min_size=1, max_size=4).filter(str.isidentifier).filter(lambda each: each not in ("y", "as"))
TEXTS = st.text("ab #:'\"\\,[]{}=-%é", max_size=8)
FLOATS = st.floats(1e-12, 1e12).map(lambda each: float(f"{each:.6g}"))
SCALARS = st.one_of(st.integers(-9, 10**6), FLOATS, st.booleans(), TEXTS)
BRANCHES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3), st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)
TREES = st.dictionaries(NAMES, BRANCHES, min_size=1, max_size=4)
NEWLINES = st.sampled_from(["\n", "\r\n"])


def leaves(value: Any, prefix: str = "") -> list[str]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inner = [leaf for name, each in members for leaf in leaves(each, f"{prefix}.{name}" if prefix else str(name))]
    return inner or ([prefix] if not isinstance(value, dict | list) else [])


def of_the_same_kind(draw: st.DrawFn, value: Any) -> Any:
    kinds = {bool: st.booleans(), int: st.integers(0, 10**6), float: FLOATS, str: TEXTS}
    return draw(kinds[type(value)])


def written_as_yaml(draw: st.DrawFn, tree: dict[str, Any]) -> str:
    flow = draw(st.sampled_from([None, False, True]))
    text = yaml.safe_dump(
        tree,
        default_flow_style=flow,
        indent=draw(st.sampled_from([2, 4])),
        width=10**6,
        allow_unicode=True,
        sort_keys=False,
    )
    return "".join(draw(st.sampled_from(["", "# note: 1\n", "\n"])) + line for line in text.splitlines(keepends=True))


def written_as_json(draw: st.DrawFn, tree: dict[str, Any]) -> str:
    indent = draw(st.sampled_from([None, 2, "\t"]))
    colon = draw(st.sampled_from([":", ": ", " : "]))
    return json.dumps(tree, indent=indent, separators=(",", colon), ensure_ascii=draw(st.booleans()))


def written_as_python(draw: st.DrawFn, tree: dict[str, Any]) -> str:
    def literal(value: Any) -> str:
        if isinstance(value, dict) and draw(st.booleans()):
            return f"dict({', '.join(f'{name}={literal(each)}' for name, each in value.items())})"
        return repr(value)

    def assigned(name: str, value: Any) -> str:
        before, after = draw(st.sampled_from(["", "# é", "import os"])), draw(st.sampled_from(["", "  # ä"]))
        return f"{before}\n{name}{gap}{literal(value)}{after}\n"

    gap = draw(st.sampled_from([" = ", "=", " =  \\\n  "]))
    return "".join(assigned(name, value) for name, value in tree.items())


def written_as_toml(draw: st.DrawFn, tree: dict[str, Any]) -> str:
    def inline(value: Any) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{name} = {inline(each)}" for name, each in value.items()) + " }"
        if isinstance(value, list):
            gap = draw(st.sampled_from(["", " ", "\n  # 1, 2\n  "]))
            return f"[{gap}{f',{gap}'.join(inline(each) for each in value)}{gap}]"
        return json.dumps(value, ensure_ascii=False)

    tables = {name: value for name, value in tree.items() if isinstance(value, dict) and draw(st.booleans())}
    lines = [
        f"{draw(st.sampled_from([name, chr(34) + name + chr(34)]))} = {inline(value)}"
        for name, value in tree.items()
        if name not in tables
    ]
    for name, table in tables.items():
        lines += ["", f"[ {name} ] # a = 1", *(f"  {inner} = {inline(value)}" for inner, value in table.items())]
    return "\n".join(lines) + draw(st.sampled_from(["", "\n", "\n# end"]))


def written_as_shell(draw: st.DrawFn, tree: dict[str, Any]) -> str:
    gap = draw(st.sampled_from([" ", " \\\n    "]))
    flags = [f"--{name}{draw(st.sampled_from(['=', ' ']))}{value}" for name, value in tree.items()]
    return f"# python a.py --lr 3\nset -e; srun python train.py{gap}{gap.join(flags)} && echo done\n"


WRITERS = {YAML: written_as_yaml, JSON: written_as_json, PYTHON: written_as_python, TOML: written_as_toml}


def evaluated(language: Language, text: str) -> Any:
    if language.load is not None:
        return language.load(text, where="x")
    names: dict[str, Any] = {}
    exec(text, names)  # noqa: S102 - assignments of literals, made above
    return {name: value for name, value in names.items() if name not in ("__builtins__", "os")}


def check(draw: st.DrawFn, language: Language, tree: dict[str, Any], text: str) -> None:
    """Change one leaf of a text, and compare every byte and every value."""
    before = evaluated(language, text)
    assume(not list(differences(tree, before)))
    keys = [each for each in leaves(tree) if isinstance(lookup(tree, each), bool | int | float | str)]
    assume(keys)
    key = draw(st.sampled_from(keys))
    new = of_the_same_kind(draw, lookup(tree, key))
    location = language.locate(text, key)
    assert location is not None
    assert location.obstacle is None
    span = location.span
    after = splice(text, [Edit(span=span, text=language.write(new, like=text[span.start : span.end]))])
    assert after.startswith(text[: span.start])
    assert after.endswith(text[span.end :])
    assert list(differences(with_value(before, key, new), evaluated(language, after))) == []


@pytest.mark.parametrize("language", WRITERS, ids=lambda each: each.name)
@given(st.data(), TREES, NEWLINES)
def test_one_value_changes_and_no_other_byte(
    language: Language, data: st.DataObject, tree: dict[str, Any], newline: str
) -> None:
    check(data.draw, language, tree, WRITERS[language](data.draw, tree).replace("\n", newline))


@given(st.data(), st.dictionaries(NAMES, st.one_of(st.integers(0, 99), FLOATS, st.booleans()), min_size=1), NEWLINES)
def test_one_flag_changes_and_no_other_byte(data: st.DataObject, tree: dict[str, Any], newline: str) -> None:
    check(data.draw, SHELL, tree, written_as_shell(data.draw, tree).replace("\n", newline))
