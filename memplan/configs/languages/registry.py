"""The languages configs are written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from memplan.configs.languages.argparse_source import choices_in, load_arguments, locate_in_arguments, no_addition
from memplan.configs.languages.interpolations import resolved
from memplan.configs.languages.json_source import add_to_json, load_json, locate_in_json
from memplan.configs.languages.literals import write_json, write_python, write_shell, write_toml, write_yaml
from memplan.configs.languages.python_source import add_to_python, locate_in_python
from memplan.configs.languages.python_style import PythonStyle, style_of
from memplan.configs.languages.shell_source import (
    add_to_shell,
    environment_behind,
    lines_behind,
    load_shell,
    locate_in_shell,
    with_computed,
)
from memplan.configs.languages.toml_source import add_to_toml, load_toml, locate_in_toml
from memplan.configs.languages.yaml_source import add_to_yaml, load_yaml, locate_in_yaml
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from memplan.configs.languages.spans import Edit, Location


class LiteralWriter(Protocol):
    """Writes one value in a language's spelling, in the notation of the literal it takes the place of."""

    def __call__(self, value: Any, *, like: str | None = None) -> str:
        """Return the literal's text."""


class Loader(Protocol):
    """Reads text as plain data without running any of it."""

    def __call__(self, text: str, *, where: str) -> Any:
        """Return the data; raise a ``ConfigError`` that begins with ``where`` if it is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """One config language.

    Args:
        name: as shown to users.
        suffixes: file name endings.
        comment_prefix: what starts a comment; None where the language has none.
        load: text -> plain data; None where reading a config means running it.
        locate: (text, dotted key) -> where the value is written, or None.
        add: (text, key -> literal) -> edit that sets new keys, or None where the file's form does not allow it.
        write: value -> literal.
        resolve: (text, its values) -> the values with what refers to others worked out, as a program would get them.
        environment_behind: (text, dotted key) -> the variables of the environment that the value depends on.
        lines_behind: (text, dotted key) -> the lines between which only running the file would decide, from 1.
        choices: (text, dotted key) -> the values that are taken there; none where the file does not say.
    """

    name: str
    suffixes: tuple[str, ...]
    comment_prefix: str | None
    load: Loader | None
    locate: Callable[[str, str], Location | None]
    add: Callable[[str, dict[str, str]], Edit | None]
    write: LiteralWriter
    resolve: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda _text, values: values
    environment_behind: Callable[[str, str], tuple[str, ...]] = lambda _text, _key: ()
    lines_behind: Callable[[str, str], tuple[int, ...]] = lambda _text, _key: ()
    choices: Callable[[str, str], tuple[Any, ...]] = lambda _text, _key: ()


def _resolved_where_lazy(text: str, values: dict[str, Any]) -> dict[str, Any]:
    """Resolve what a LazyConfig holds, which is OmegaConf's; other Python configs have no interpolations."""
    return resolved(values) if style_of(text) is PythonStyle.LAZY_CONFIG else values


PYTHON = Language(
    name="Python",
    suffixes=(".py",),
    comment_prefix="#",
    load=None,
    locate=locate_in_python,
    add=add_to_python,
    write=write_python,
    resolve=_resolved_where_lazy,
)
YAML = Language(
    name="YAML",
    suffixes=(".yaml", ".yml"),
    comment_prefix="#",
    load=load_yaml,
    locate=locate_in_yaml,
    add=add_to_yaml,
    write=write_yaml,
    resolve=lambda _text, values: resolved(values),
)
JSON = Language(
    name="JSON",
    suffixes=(".json",),
    comment_prefix=None,
    load=load_json,
    locate=locate_in_json,
    add=add_to_json,
    write=write_json,
)
TOML = Language(
    name="TOML",
    suffixes=(".toml",),
    comment_prefix="#",
    load=load_toml,
    locate=locate_in_toml,
    add=add_to_toml,
    write=write_toml,
)
SHELL = Language(
    name="Shell",
    suffixes=(".sh", ".bash", ".sbatch", ".slurm"),
    comment_prefix="#",
    load=load_shell,
    locate=locate_in_shell,
    add=add_to_shell,
    write=write_shell,
    resolve=with_computed,
    environment_behind=environment_behind,
    lines_behind=lines_behind,
)
ARGUMENTS = Language(  # recognised among Python files by its content
    name="Argparse",
    suffixes=(),
    comment_prefix="#",
    load=load_arguments,
    locate=locate_in_arguments,
    add=no_addition,
    write=write_python,
    choices=choices_in,
)
LANGUAGES = (PYTHON, YAML, JSON, TOML, SHELL, ARGUMENTS)


def language_of(path: Path) -> Language:
    """Return the language of a file by its name.

    Raises:
        ConfigError: the name has another ending.
    """
    for language in LANGUAGES:
        if path.suffix.lower() in language.suffixes:
            return language
    known = " ".join(suffix for language in LANGUAGES for suffix in language.suffixes)
    what = f"files ending in {path.suffix!r}" if path.suffix else "files without an ending"
    hint = f'use one of {known}, or have memplan run your training command: memplan probe --command "..."'
    raise ConfigError(f"{what} are not configs memplan reads", where=str(path), hint=hint)
