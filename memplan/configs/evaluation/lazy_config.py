"""Evaluate a detectron2 LazyConfig and the configs it imports, without detectron2 or anything else it imports.

Runs the config's code: only for the child process of :mod:`memplan.configs.evaluation.python_reader`. Rules, from
``detectron2/config/lazy.py``: a relative import runs the file at that place and turns the dicts it is asked for into
configs; nothing is cached, so each import has values of its own; ``LazyCall(f)(a=1)`` is a config with ``_target_``;
what counts are the configs and dicts at the top whose names have no leading underscore; tuples become lists when they
enter a config, as OmegaConf has them. Interpolations stay text. What comes from other packages is only named.
"""

from __future__ import annotations

import builtins
import sys
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memplan.configs.attribute_dict import AttributeDict
from memplan.configs.documents import SourceFile, absolute_path, is_there, read_source
from memplan.configs.evaluation.imported_names import InertName, as_text
from memplan.configs.evaluation.plain_data import OWN_MODULE
from memplan.configs.languages.python_style import is_builtin, syntax_tree
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_MAX_FILES = 200


class LazyValues(AttributeDict):
    """A dict with attribute access that takes copies of what is set, like OmegaConf's ``DictConfig``."""

    def __init__(self, content: Mapping[str, Any] | None = None, **values: Any) -> None:
        super().__init__()
        self.update({**(content or {}), **values})

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, _entering(value))


def _is_config(value: Any) -> bool:
    return isinstance(value, dict) or type(value).__module__ == OWN_MODULE


def _entering(value: Any) -> Any:
    """Return what a value becomes inside a config."""
    if isinstance(value, dict):
        return LazyValues(value)
    if isinstance(value, list | tuple):
        return [_entering(each) for each in value]
    return value


def _lazy_call(target: Any) -> Callable[..., LazyValues]:
    return lambda **arguments: LazyValues(arguments, _target_=target)


@dataclass(slots=True)
class LazyConfigReading:
    """One evaluation of a config: text to take instead of files on disk, the files met, and those being run."""

    texts: Mapping[str, str]
    files: list[SourceFile] = field(default_factory=list)
    importing: list[Path] = field(default_factory=list)

    def evaluate(self, path: Path) -> dict[str, Any]:
        """Return the effective values, with imported names as text.

        Raises:
            ConfigError: it or a config it imports is missing or invalid.
        """
        values = self.configs_in(path)
        return {name: as_text(value) for name, value in values.items()}

    def configs_in(self, path: Path) -> LazyValues:
        """Return the configs that a file sets, by their names; objects of a config's own classes among them."""
        namespace = self.executed(path)
        own = {name: value for name, value in namespace.items() if not name.startswith("_")}
        return LazyValues({name: value for name, value in own.items() if _is_config(value)})

    def executed(self, path: Path) -> dict[str, Any]:
        """Run a file and return what it binds.

        Raises:
            ConfigError: the file cannot be read, or imports itself.
        """
        source = read_source(path, texts=self.texts)
        if source.path in self.importing:
            raise ConfigError(f"{path.name} imports itself", where=str(source.path), hint="break the circle")
        if len(self.files) >= _MAX_FILES:
            raise ConfigError(f"it imports more than {_MAX_FILES} configs", where=str(self.files[0].path))
        self.files.append(source)
        self.importing.append(source.path)
        tree = syntax_tree(source.text.removeprefix("\ufeff"), source.path)
        namespace: dict[str, Any] = {
            "__file__": str(source.path),
            "__name__": OWN_MODULE,
            "__package__": source.path.parent.name,
            "__builtins__": {**vars(builtins), "__import__": _Imports(reading=self, path=source.path)},
        }
        sys.modules.setdefault(OWN_MODULE, types.ModuleType(OWN_MODULE))  # where dataclasses look for that of a class
        exec(compile(tree, str(source.path), "exec"), namespace)  # noqa: S102 - a Python config is code; see the module's docstring
        self.importing.pop()
        del namespace["__builtins__"]
        return namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class _Imports:
    """The ``__import__`` of one config file."""

    reading: LazyConfigReading
    path: Path

    def __call__(
        self,
        name: str,
        globals: Any = None,  # noqa: A002 - the signature of __import__
        locals: Any = None,  # noqa: A002 - the signature of __import__
        fromlist: tuple[str, ...] | None = (),
        level: int = 0,
    ) -> Any:
        """Import a config, a module of Python's own, or the stand-in of any other."""
        if level:
            return self._config(name, tuple(fromlist or ()), level)
        if is_builtin(name):
            return __import__(name, globals, locals, fromlist or (), level)
        known = self._known(name) if fromlist else None
        return known or InertName(name if fromlist else name.partition(".")[0])

    def _known(self, name: str) -> types.SimpleNamespace | None:
        if name.split(".")[:2] == ["detectron2", "config"]:
            lazy = types.SimpleNamespace(load=self._load, load_rel=self._load)
            return types.SimpleNamespace(LazyCall=_lazy_call, LazyConfig=lazy, instantiate=InertName("instantiate"))
        if name == "omegaconf":
            make = types.SimpleNamespace(create=LazyValues)
            return types.SimpleNamespace(OmegaConf=make, DictConfig=LazyValues, ListConfig=list)
        if name == "detectron2":
            return types.SimpleNamespace(model_zoo=types.SimpleNamespace(get_config=self._from_zoo))
        if name == "detectron2.model_zoo":
            return types.SimpleNamespace(get_config=self._from_zoo)
        return None

    def _config(self, name: str, wanted: tuple[str, ...], level: int) -> types.SimpleNamespace:
        folder = self.path.parent.joinpath(*[".."] * (level - 1))
        path = absolute_path(folder.joinpath(*name.split(".")).with_suffix(".py"))
        if not name or not is_there(path, self.reading.texts):
            raise ConfigError(
                f"there is no config {path}", where=str(self.path), hint="a relative import must name a config file"
            )
        namespace = self.reading.executed(path)
        found = {each: namespace[each] for each in wanted if each in namespace}
        if missing := [each for each in wanted if each not in found]:
            raise ConfigError(f"{path.name} sets no {missing[0]!r}", where=str(self.path), hint="correct the import")
        return types.SimpleNamespace(
            **{each: LazyValues(value) if isinstance(value, dict) else value for each, value in found.items()}
        )

    def _load(self, filename: str, keys: str | tuple[str, ...] | None = None) -> Any:
        values = self.reading.configs_in(absolute_path(self.path.parent / filename))
        if isinstance(keys, tuple | list):
            return tuple(values[each] for each in keys)
        return values if keys is None else values[keys]

    def _from_zoo(self, name: str, *_args: Any, **_kwargs: Any) -> LazyValues:
        """Find a config of detectron2's model zoo in the checkout that this config is part of."""
        places = (absolute_path(each / below / name) for each in self.path.parents for below in ("configs", "."))
        found = next((each for each in places if is_there(each, self.reading.texts)), None)
        if found is None:
            raise ConfigError(
                f"detectron2's config {name} was not found above this one",
                where=str(self.path),
                hint="read it in a checkout of detectron2, or copy that config beside this one",
            )
        return self.reading.configs_in(found)
