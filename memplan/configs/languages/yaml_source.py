"""Read YAML as plain data without constructing tags, and find where a value is written.

``3e-4`` is a number as in YAML 1.2, which OmegaConf, Hydra and jsonargparse follow; only PyYAML takes it for text. What
``!ref <a[b]>`` of HyperPyYAML refers to is read as OmegaConf's ``${a[b]}`` is.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import yaml

from memplan.configs.languages.invalid_text import invalid_text
from memplan.configs.languages.spans import (
    Edit,
    Location,
    Span,
    appended_lines,
    line_at,
    line_ending,
    line_start,
    lines_below,
)
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_EXPANDED_NODES = 200_000
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)+")
_DOCUMENT_END = re.compile(r"^\.\.\.", re.MULTILINE)
EXPONENT_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+")
_REFERENCE = re.compile(r"<([^<>]+)>")
_ONE_DOCUMENT = "expected a single document in the stream"  # PyYAML's words
_ALIAS = re.compile(r"\s*:\s*(?P<alias>\*[^\s,\[\]{}]+)")
_IS_ALIAS = "it is an alias of a value written elsewhere"
_MERGE_TAG = "tag:yaml.org,2002:merge"


class _PlainLoader(yaml.SafeLoader):
    """Builds dicts, lists and scalars only; an unknown tag or a date becomes text."""


def _as_text(loader: yaml.SafeLoader, node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else f"{node.tag} {loader.name}"


def _as_interpolation(loader: yaml.SafeLoader, node: yaml.Node) -> str:
    return _REFERENCE.sub(r"${\1}", _as_text(loader, node))


_PlainLoader.add_constructor(None, _as_text)
_PlainLoader.add_constructor("!ref", _as_interpolation)
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"{EXPONENT_FLOAT.pattern}$"), list("-+0123456789")
)
for _kind in ("timestamp", "binary", "set", "omap", "pairs"):
    _PlainLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _as_text)


def load_yaml(text: str, *, where: str, empty: Any = None, notes: list[str] | None = None) -> Any:
    """Read YAML text as plain data.

    Args:
        text: one YAML document.
        where: file, for messages.
        empty: what a text of comments alone stands for; None where that is an error.
        notes: gets a note for each key that a section sets twice.

    Raises:
        ConfigError: it is not valid YAML, refers to itself, or expands to more than ``_MAX_EXPANDED_NODES`` values.
    """
    try:
        loader = _PlainLoader(text)
        node = loader.get_single_node()
        if node is None and empty is not None:
            return empty
        if node is None:
            raise ConfigError("the file is empty", where=where, hint="name a config that sets a batch size")
        _require_finite(node, where)
        if notes is not None:
            twice, name = _set_twice(node, "", set()), PurePath(where).name
            notes += [f"{each} of {name}, and the last counts" for each in twice]
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        if error.context == _ONE_DOCUMENT:
            raise ConfigError(
                "it holds several documents", where=f"{where}:{line}", hint="name a file of one"
            ) from None
        problem = str(error.problem or error.context)
        raise invalid_text("YAML", problem, text, where=where, line=line) from None
    except (yaml.YAMLError, ValueError) as error:
        problem = str(error).splitlines()[0]
        raise invalid_text("YAML", problem, text, where=where) from None
    except RecursionError:
        raise ConfigError("it is nested too deeply", where=where) from None


def _require_finite(node: yaml.Node, where: str) -> None:
    """Refuse a document that refers to itself, or grows beyond reason where its aliases are written out."""
    written: dict[int, int | None] = {}
    expanded = _expanded_size(node, written, where)
    if expanded > _MAX_EXPANDED_NODES and expanded > 2 * len(written):
        raise ConfigError("its aliases expand without reason", where=where, hint="write the values out")


def _expanded_size(node: yaml.Node, sizes: dict[int, int | None], where: str) -> int:
    if id(node) in sizes:
        known = sizes[id(node)]
        if known is None:
            line = node.start_mark.line + 1
            raise ConfigError(
                "an alias refers to what contains it", where=f"{where}:{line}", hint="write the value out"
            )
        return known
    sizes[id(node)] = None
    children = [each for pair in node.value for each in pair] if isinstance(node, yaml.MappingNode) else node.value
    nested = () if isinstance(node, yaml.ScalarNode) else children
    size = 1 + sum(_expanded_size(each, sizes, where) for each in nested)
    sizes[id(node)] = size
    return size


def _set_twice(node: yaml.Node, prefix: str, seen: set[int]) -> Iterator[str]:
    """Yield which keys a section of a document sets more than once, and in which lines."""
    if id(node) in seen or not isinstance(node, yaml.CollectionNode):
        return
    seen.add(id(node))
    if not isinstance(node, yaml.MappingNode):
        for index, each in enumerate(node.value):
            yield from _set_twice(each, f"{prefix}{index}.", seen)
        return
    lines: dict[str, list[int]] = {}
    for name, value in node.value:
        if isinstance(name, yaml.ScalarNode) and name.tag != _MERGE_TAG:
            lines.setdefault(name.value, []).append(name.start_mark.line + 1)
            yield from _set_twice(value, f"{prefix}{name.value}.", seen)
    for key, found in lines.items():
        if len(found) > 1:
            yield f"{prefix}{key} is set in lines {', '.join(map(str, found[:-1]))} and {found[-1]}"


@lru_cache(maxsize=8)
def _composed(text: str) -> yaml.Node | None:
    return yaml.compose(text, Loader=_PlainLoader)


def locate_in_yaml(text: str, key: str) -> Location | None:
    """Find the scalar that gives a dotted key its value; None where the file does not set it."""
    try:
        root = _composed(text)
    except (yaml.YAMLError, RecursionError):
        return None
    *sections, name = key.split(".")
    section, obstacle = (None, None) if root is None else _descend(root, sections)
    node, sharing = (None, None) if section is None else _member(section, name)
    if node is None or section is None:
        return None
    written = Location(span=_value_span(text, node), line=node.start_mark.line + 1)
    if obstacle := obstacle or _obstacle_of(node):
        return replace(written, obstacle=obstacle)
    return written if sharing is None else _place_of_its_own(text, section, name, written)


def _place_of_its_own(text: str, section: yaml.Node, name: str, written: Location) -> Location:
    """Return where a value is set apart from what it is shared with: over an alias, or beside a merge key."""
    keys = [each for each, _ in reversed(section.value) if isinstance(each, yaml.ScalarNode) and each.value == name]
    if not keys:
        line, start = section.start_mark.line + 1, section.start_mark.index
        return Location(span=Span(start=start, end=start), line=line, repeats=written.span, is_added=True)
    alias = _ALIAS.match(text, keys[0].end_mark.index)
    if alias is None:
        return replace(written, obstacle=_IS_ALIAS)
    span = Span(start=alias.start("alias"), end=alias.end())
    return Location(span=span, line=line_at(text, span.start), repeats=written.span)


def add_to_yaml(text: str, entries: dict[str, str]) -> Edit | None:
    """Return the edit that sets new keys of one section, or of the top, behind those it has.

    None where the file's form does not allow that: there is no such section, or it is empty or an alias.
    """
    root, sections = _composed(text), {each.rpartition(".")[0] for each in entries}
    if not isinstance(root, yaml.MappingNode) or len(sections) != 1:
        return None
    section = sections.pop()
    lines = [f"{name.rpartition('.')[2]}: {literal}" for name, literal in entries.items()]
    if section:
        node, obstacle = _descend(root, section.split("."))
        return None if obstacle or not isinstance(node, yaml.MappingNode) else _added_to_section(text, node, lines)
    is_block = not root.flow_style and root.start_mark.column == 0
    return appended_lines(text, lines) if is_block and not _DOCUMENT_END.search(text) else None


def _added_to_section(text: str, node: yaml.MappingNode, lines: list[str]) -> Edit | None:
    """Add lines behind the last single value of a section, or before its first key where nested ones follow."""
    if not node.value:
        return None
    if node.flow_style:
        name, last = node.value[-1]
        end = last.end_mark.index
        is_alias = last.start_mark.index < name.start_mark.index
        return None if is_alias else Edit(span=Span(start=end, end=end), text="".join(f", {each}" for each in lines))
    first, last = node.value[0][0], node.value[-1][1]
    start, indent = first.start_mark.index, " " * first.start_mark.column
    if text[line_start(text, start) : start].strip():
        return None
    is_single = isinstance(last, yaml.ScalarNode) and last.style not in ("|", ">")
    if is_single and last.start_mark.line >= first.start_mark.line:
        return lines_below(text, last.end_mark.index, lines, indent=indent)
    gap = f"{line_ending(text)}{indent}"
    return Edit(span=Span(start=start, end=start), text="".join(f"{each}{gap}" for each in lines))


def _descend(node: yaml.Node, parts: list[str]) -> tuple[yaml.Node | None, str | None]:
    obstacle: str | None = None
    for part in parts:
        found, blocked = _member(node, part)
        if found is None:
            return None, None
        obstacle, node = obstacle or blocked, found
    return node, obstacle


def _member(node: yaml.Node, part: str) -> tuple[yaml.Node | None, str | None]:
    if isinstance(node, yaml.SequenceNode):
        return (node.value[int(part)] if part.isdecimal() and int(part) < len(node.value) else None), None
    if not isinstance(node, yaml.MappingNode):
        return None, None
    for name, value in reversed(node.value):
        if isinstance(name, yaml.ScalarNode) and name.value == part:
            is_alias = value.start_mark.index < name.start_mark.index
            return value, _IS_ALIAS if is_alias else None
    return _merged_member(node, part), "it is inherited through a merge key"


def _merged_member(node: yaml.MappingNode, part: str) -> yaml.Node | None:
    merged = [value for name, value in node.value if name.tag == _MERGE_TAG]
    bases = [base for value in merged for base in (value.value if isinstance(value, yaml.SequenceNode) else [value])]
    return next((found for base in bases if (found := _member(base, part)[0]) is not None), None)


def _obstacle_of(node: yaml.Node) -> str | None:
    if not isinstance(node, yaml.ScalarNode):
        return "it is not a single value"
    if node.style in ("|", ">"):
        return "it is a block of text"
    return "it is an interpolation" if "${" in node.value or node.tag == "!ref" else None


def _value_span(text: str, node: yaml.Node) -> Span:
    start, end = node.start_mark.index, node.end_mark.index
    properties = _PROPERTIES.match(text, start, end)
    return Span(start=properties.end() if properties else start, end=end)
