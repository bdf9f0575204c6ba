"""Evaluate a Python config and the ``_base_`` files it inherits from, by the rules of mmcv and mmengine.

Runs the config's code: only for the child process of :mod:`memplan.configs.evaluation.python_reader`. Rules, from
``mmcv/utils/config.py`` (1.x) and ``mmengine/config/config.py`` (0.10): ``_base_`` is a path or a list of paths beside
the file; dicts merge key by key, everything else (lists too) is replaced whole; ``_delete_=True`` in a dict drops the
inherited one; two bases must not set the same top-level key; ``{{ fileBasename }}``, ``{{ _base_.a.b }}`` and
``{{$NAME:default}}`` are filled in. ``custom_imports`` is data, it is not run.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
import types
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memplan.configs.attribute_dict import DELETE_KEY, NestedValues
from memplan.configs.documents import SourceFile, absolute_path, is_there, read_source, require_keys
from memplan.configs.evaluation.installed_configs import file_in_package, scoped
from memplan.configs.evaluation.plain_data import DEEPEST_OBJECT, OWN_MODULE, settings_in
from memplan.configs.languages.json_source import load_json
from memplan.configs.languages.python_style import BASE_KEY, CONFIG_FUNCTION, base_assignment, is_read_base, syntax_tree
from memplan.configs.languages.yaml_source import load_yaml
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BASE_VARIABLE = re.compile(r"\{\{\s*_base_\.([\w.]+)\s*\}\}")
_ENVIRONMENT = re.compile(r"""\{\{['"]?\s*\$(\w+)\s*:\s*(\S*?)\s*['"]?\}\}""")
_PLACEHOLDER = "__memplan_base_variable__:"
_FIELDS = (bool, int, float, str, list, tuple, dict)


@dataclass(slots=True)
class BaseListReading:
    """One evaluation of a config: text to take instead of files on disk, and the files met, nearest first."""

    texts: Mapping[str, str]
    files: list[SourceFile] = field(default_factory=list)

    def evaluate(self, path: Path, parents: tuple[Path, ...] = (), named_at: str | None = None) -> dict[str, Any]:
        """Return the effective values of one file, inheritance resolved.

        Raises:
            ConfigError: it or one of its bases is missing, cyclic, invalid, or raises.
        """
        if path.resolve() in parents:
            raise ConfigError(
                f"{path.name} inherits from itself through _base_", where=named_at, hint="break the circle"
            )
        if not is_there(path, self.texts):
            raise ConfigError(f"_base_ file {path} does not exist", where=named_at, hint="correct the path in _base_")
        source = read_source(path, texts=self.texts)
        self.files.append(source)
        chain = (*parents, path.resolve())
        if path.suffix != ".py":
            return self._merged(_structured(source), path, chain, named_at=str(path))
        return self._evaluate_python(source, chain)

    def _evaluate_python(self, source: SourceFile, chain: tuple[Path, ...]) -> dict[str, Any]:
        text = _filled_in(source.text.removeprefix("\ufeff"), source.path)
        tree = syntax_tree(text, source.path)
        _refuse_pure_python(tree, source.path)
        statement, declared = _declared_bases(tree)
        place = f"{source.path}:{statement.lineno}" if statement else str(source.path)
        base = NestedValues(self._base_values(declared, source.path, chain, place)) if statement else None
        if statement is not None:
            tree.body.remove(statement)
        values = _executed(tree, source.path, base)
        if base is None:
            return self._merged(values, source.path, chain, named_at=place)
        return merge(_with_base_variables(values, base), base, where=str(source.path))

    def _merged(self, values: dict[str, Any], path: Path, chain: tuple[Path, ...], named_at: str) -> dict[str, Any]:
        declared = values.pop(BASE_KEY, None)
        base = {} if declared is None else self._base_values(declared, path, chain, named_at)
        return merge(_with_base_variables(values, base), base, where=str(path))

    def _base_values(self, declared: Any, path: Path, chain: tuple[Path, ...], named_at: str) -> dict[str, Any]:
        collected: dict[str, Any] = {}
        for name in declared if isinstance(declared, list | tuple) else [declared]:
            if not isinstance(name, str):
                raise ConfigError(f"_base_ = {name!r} is not a path", where=named_at, hint="name config files as text")
            if "::" in name:
                file = file_in_package(name, named_at=named_at)
                base = scoped(self.evaluate(file, chain, named_at), name.partition("::")[0])
            else:
                base = self.evaluate(absolute_path(path.parent / name), chain, named_at)
            if repeated := sorted(collected.keys() & base.keys()):
                raise ConfigError(
                    f"{', '.join(repeated)} is set by more than one _base_ file", where=named_at, hint="keep it in one"
                )
            collected |= base
        return collected


def merge(child: Mapping[str, Any], base: Mapping[str, Any], *, where: str, key: str = "") -> dict[str, Any]:
    """Merge a config into the one it inherits from.

    Raises:
        ConfigError: a dict overrides an inherited value that is not a dict.
    """
    merged = dict(base)
    for name, value in child.items():
        if not isinstance(value, dict):
            merged[name] = value
            continue
        own = dict(value)
        if name not in base or own.pop(DELETE_KEY, False):
            merged[name] = own
        elif isinstance(base[name], dict):
            merged[name] = merge(own, base[name], where=where, key=f"{key}{name}.")
        else:
            raise ConfigError(
                f"{key}{name} is a dict here but {type(base[name]).__name__} in the base config",
                where=where,
                hint=f"add {DELETE_KEY}=True to replace it",
            )
    return merged


def _structured(source: SourceFile) -> dict[str, Any]:
    load = load_json if source.path.suffix == ".json" else load_yaml
    return require_keys(load(source.text, where=str(source.path)), source.path)


def _filled_in(text: str, path: Path) -> str:
    variables = {
        "fileDirname": str(path.parent),
        "fileBasename": path.name,
        "fileBasenameNoExtension": path.stem,
        "fileExtname": path.suffix,
    }
    for name, value in variables.items():
        text = re.sub(rf"\{{\{{\s*{name}\s*\}}\}}", lambda _, value=value: value.replace("\\", "/"), text)  # type: ignore[misc]  # a default argument binds the loop's value
    text = _ENVIRONMENT.sub(lambda match: os.environ.get(match[1], match[2]), text)
    return _BASE_VARIABLE.sub(lambda match: f'"{_PLACEHOLDER}{match[1]}"', text)


def _with_base_variables(values: Any, base: Mapping[str, Any]) -> Any:
    if isinstance(values, dict):
        return {name: _with_base_variables(each, base) for name, each in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(_with_base_variables(each, base) for each in values)
    if not isinstance(values, str) or not values.startswith(_PLACEHOLDER):
        return values
    found: Any = base
    for part in values.removeprefix(_PLACEHOLDER).split("."):
        found = found[part]
    return deepcopy(found)


def _refuse_pure_python(tree: ast.Module, path: Path) -> None:
    for statement in tree.body:
        if is_read_base(statement):
            raise ConfigError(
                "_base_ and read_base() must not be mixed in one chain of configs",
                where=f"{path}:{statement.lineno}",
                hint="name its bases in _base_ = [...]",
            )


def _declared_bases(tree: ast.Module) -> tuple[ast.Assign | None, Any]:
    for statement in tree.body:
        assignment = base_assignment(statement)
        if assignment is not None:
            try:
                return assignment, ast.literal_eval(assignment.value)
            except ValueError:
                return None, None
    return None, None


def _executed(tree: ast.Module, path: Path, base: NestedValues | None) -> dict[str, Any]:
    module = types.ModuleType(OWN_MODULE)
    module.__file__ = str(path)
    if base is not None:
        module.__dict__[BASE_KEY] = base  # which the config may change, as in mmengine
    sys.modules[OWN_MODULE] = module
    exec(compile(tree, str(path), "exec"), module.__dict__)  # noqa: S102 - a Python config is code; see the module's docstring
    if base is not None:
        module.__dict__.pop(BASE_KEY, None)
    own = {name: value for name, value in module.__dict__.items() if not name.startswith("__")}
    made = set(_kinds_within(own))  # objects of a class may have other values than it says
    classes = {name: value for name, value in own.items() if isinstance(value, type) and value not in made}
    sections = {name: found for name, value in classes.items() if (found := _fields_of(value))}
    values = {
        name: sections.get(name, value)
        for name, value in own.items()
        if name in sections or not isinstance(value, types.ModuleType | types.FunctionType | type)
    }
    if values and not any(_is_of_ml_collections(each) for each in own.values()):
        return values
    return {**values, **_returned(own.get(CONFIG_FUNCTION))}


def _is_of_ml_collections(value: Any) -> bool:
    """Whether a value is ml_collections, or was imported from it."""
    place = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return isinstance(place, str) and place.partition(".")[0] == "ml_collections"


def _kinds_within(values: Mapping[str, Any], depth: int = 0) -> Iterator[type]:
    """Yield the types of values, their bases included, and of what those of the config's own types hold."""
    for each in values.values():
        yield from type(each).__mro__
        if type(each).__module__ == OWN_MODULE and depth < DEEPEST_OBJECT:
            yield from _kinds_within(settings_in(each), depth + 1)


def _returned(function: Any) -> Mapping[str, Any]:
    """Return the config that ``get_config()`` makes, as ml_collections has it; none where it is no such function.

    A file that sets values itself may have a function of this name for anything else.
    """
    if not isinstance(function, types.FunctionType) or function.__module__ != OWN_MODULE:
        return {}
    needed = [each for each in inspect.signature(function).parameters.values() if each.default is each.empty]
    config = None if needed else function()
    return config if isinstance(config, Mapping) else settings_in(config)


def _fields_of(kind: type) -> dict[str, Any]:
    """Return the plain values that a class sets, where it is the config's own."""
    own = vars(kind) if kind.__module__ == OWN_MODULE else {}
    fields = {name: _fields_of(each) if isinstance(each, type) else each for name, each in own.items()}
    return {name: each for name, each in fields.items() if type(each) in _FIELDS and not name.startswith("_")}
