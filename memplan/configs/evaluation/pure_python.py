"""Evaluate a config of mmengine's pure-Python style and those it inherits from with ``read_base()``.

Runs the config's code: only for the child process of :mod:`memplan.configs.evaluation.python_reader`. Rules, from
``Config._parse_lazy_import`` (``mmengine/config/config.py`` 0.10): the names of the bases are there before anything
else; their dicts have attribute access and an ``update`` that goes into nested dicts; what is imported from other
packages is only named, never imported, and is left out of the config's own values; ``_base_`` must not be used.
"""

from __future__ import annotations

import ast
import types
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memplan.configs.attribute_dict import nested
from memplan.configs.documents import SourceFile, absolute_path, is_there, read_source
from memplan.configs.evaluation.imported_names import ImportedName, as_text
from memplan.configs.evaluation.installed_configs import package_folder
from memplan.configs.languages.python_style import base_assignment, is_builtin, is_read_base, syntax_tree
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_IMPORTS = "__memplan_imports__"


@dataclass(slots=True)
class PurePythonReading:
    """One evaluation of a config: text to take instead of files on disk, and the files met, nearest first."""

    texts: Mapping[str, str]
    files: list[SourceFile] = field(default_factory=list)

    def evaluate(self, path: Path) -> dict[str, Any]:
        """Return the effective values, with imported names as text.

        Raises:
            ConfigError: it or one of its bases is missing, cyclic or invalid.
        """
        values, imported = self._values_of(path, ())
        own = {name: value for name, value in values.items() if name not in imported and _is_value(value)}
        return {name: as_text(value) for name, value in own.items()}

    def _values_of(self, path: Path, parents: tuple[Path, ...]) -> tuple[dict[str, Any], set[str]]:
        """Return what a file and its bases bind, and which of the names are imports."""
        source = read_source(path, texts=self.texts)
        self.files.append(source)
        tree = syntax_tree(source.text.removeprefix("\ufeff"), source.path)
        chain = (*parents, source.path)
        namespace: dict[str, Any] = {"__file__": str(source.path)}
        imported: set[str] = set()
        for statement in tree.body:
            _refuse_other_style(statement, source.path)
            if is_read_base(statement) and isinstance(statement, ast.With):
                for base in statement.body:
                    imported |= self._bind_base(base, source.path, chain, namespace)
        stand_ins: dict[str, ImportedName] = {}
        body = [each for statement in tree.body for each in _without_imports(statement, stand_ins, imported)]
        namespace[_IMPORTS] = stand_ins
        module = ast.fix_missing_locations(ast.Module(body=body, type_ignores=[]))
        exec(compile(module, str(source.path), "exec"), namespace)  # noqa: S102 - a Python config is code; see the module's docstring
        return {name: _unshared(value) for name, value in namespace.items() if not name.startswith("__")}, imported

    def _bind_base(
        self, statement: ast.stmt, path: Path, chain: tuple[Path, ...], namespace: dict[str, Any]
    ) -> set[str]:
        place = f"{path}:{statement.lineno}"
        if not isinstance(statement, ast.ImportFrom) or statement.module is None:
            raise ConfigError(
                "only from ... import ... may stand under read_base()", where=place, hint="import names from a file"
            )
        base = _file_of(statement, path, place)
        if base in chain:
            raise ConfigError(f"{base.name} inherits from itself", where=place, hint="break the circle")
        if not is_there(base, self.texts):
            raise ConfigError(f"there is no config {base}", where=place, hint="correct the import under read_base()")
        values, imported = self._values_of(base, chain)
        for alias in statement.names:
            if alias.name == "*":
                namespace |= values
            elif alias.name in values:
                namespace[alias.asname or alias.name] = values[alias.name]
            else:
                raise ConfigError(f"{base.name} sets no {alias.name!r}", where=place, hint="correct the import")
        return imported


def _refuse_other_style(statement: ast.stmt, path: Path) -> None:
    if base_assignment(statement) is not None:
        raise ConfigError(
            "_base_ and read_base() must not be mixed in one chain of configs",
            where=f"{path}:{statement.lineno}",
            hint="import the bases under read_base()",
        )


def _file_of(statement: ast.ImportFrom, path: Path, place: str) -> Path:
    parts = (statement.module or "").split(".")
    if statement.level:
        folder = path.parent.joinpath(*[".."] * (statement.level - 1))
        return absolute_path(folder.joinpath(*parts).with_suffix(".py"))
    package = package_folder(parts[0])
    if package is None:
        raise ConfigError(
            f"the package {parts[0]!r} of a base config is not installed", where=place, hint="install it, or copy it"
        )
    return absolute_path(package.joinpath(*parts[1:]).with_suffix(".py"))


def _without_imports(statement: ast.stmt, stand_ins: dict[str, ImportedName], imported: set[str]) -> Iterator[ast.stmt]:
    """Yield what is left to run of a statement: foreign imports become assignments of their stand-ins."""
    if is_read_base(statement):
        return
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        yield statement
        return
    kept = []
    for alias, bound, name in _aliases(statement):
        imported.add(bound)
        if is_builtin(name):
            kept.append(alias)
        else:
            stand_ins[bound] = ImportedName(name)
            yield _assignment(bound, statement)
    if kept:
        yield type(statement)(**{**vars(statement), "names": kept})


def _aliases(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[ast.alias, str, str]]:
    """Yield each alias with the name it binds and the dotted name it stands for."""
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            yield alias, alias.asname or alias.name, f"{'.' * statement.level}{statement.module or ''}.{alias.name}"
        elif alias.asname is not None:
            yield alias, alias.asname, alias.name
        else:
            top = alias.name.partition(".")[0]
            yield alias, top, top


def _assignment(bound: str, statement: ast.stmt) -> ast.stmt:
    source = ast.Subscript(ast.Name(_IMPORTS, ast.Load()), ast.Constant(bound), ast.Load())
    return ast.copy_location(ast.Assign([ast.Name(bound, ast.Store())], source), statement)


def _unshared(value: Any) -> Any:
    """Return a value that shares no dict or list with another name, as mmengine passes bases on."""
    return deepcopy(nested(value)) if isinstance(value, dict | list | tuple) else value


def _is_value(value: Any) -> bool:
    return not isinstance(value, types.ModuleType | types.FunctionType | type)
