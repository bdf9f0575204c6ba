"""Load a config as its ecosystem does, with the ecosystem's own package, for ``benchmarks/configs.py``.

detectron2 cannot be installed without compiling it, so its own ``config`` sources are run from a checkout around the
config, with stand-ins for whatever else they import.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from memplan.configs.documents import read_source
from memplan.configs.evaluation.hydra_defaults import has_defaults, override_words
from memplan.configs.originals import bases_named_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SOURCED = 'RANDOM=1; . "$0"'  # the same draw each time
_BASH = shutil.which("bash") or "bash"
SCRIPT_ENVIRONMENT: dict[str, str] = {}  # what a launch script finds set, beside its path
_LAUNCHERS = ("accelerate", "deepspeed", "python", "python3", "torchrun", "srun", "mpirun")


def load(path: Path, format_name: str) -> dict[str, Any]:
    """Return the effective values of a config as plain data; anything else in them as text."""
    return _plain(_LOADERS[format_name](path))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(each) for each in value)
    if isinstance(value, functools.partial):
        return f"partial({_plain(value.func)}, {_plain(list(value.args))}, {_plain(value.keywords)})"
    return value if value is None or isinstance(value, bool | int | float | str) else _text(value)


def _text(value: Any) -> str:
    return getattr(value, "__qualname__", None) or repr(value)


def _with_mmengine(path: Path) -> Any:
    config = importlib.import_module("mmengine.config").Config
    return config.fromfile(str(path), import_custom_modules=False).to_dict()


def _with_hydra(path: Path) -> Any:
    """Load one file with OmegaConf, or compose it with Hydra where it has a defaults list or is laid over one."""
    omegaconf = importlib.import_module("omegaconf").OmegaConf
    over = bases_named_in(read_source(path))
    primary = path.parent / over[0] if over else path
    loaded = omegaconf.to_container(omegaconf.load(primary), resolve=False)
    if not has_defaults(loaded):
        return loaded
    hydra = importlib.import_module("hydra")
    overrides = [override_words(loaded, {}, overlay=path.stem)] if over else []
    with hydra.initialize_config_dir(config_dir=str(primary.parent.resolve()), version_base=None):
        composed = hydra.compose(config_name=primary.stem, overrides=overrides)
    return omegaconf.to_container(composed, resolve=False)


def _with_omegaconf(path: Path) -> Any:
    omegaconf = importlib.import_module("omegaconf").OmegaConf
    return omegaconf.to_container(omegaconf.load(path), resolve=True)


def _with_pyyaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _with_pyyaml_or_bash(path: Path) -> Any:
    return _with_pyyaml(path) if path.suffix in (".yaml", ".yml", ".json") else _with_bash(path)


def _with_bash(path: Path) -> dict[str, Any]:
    """Run a launch script where every program is a recorder of words, and return the training program's flags."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        said = folder / "said"
        for each in _LAUNCHERS:
            (folder / each).write_text(f'#!/bin/bash\nprintf "%s\\0" "$@" >> {said}\nprintf "\\0" >> {said}\n')
            (folder / each).chmod(0o755)
        environment = {"PATH": name, "HOME": name, "PWD": name, **SCRIPT_ENVIRONMENT}
        command = [_BASH, "--norc", "-c", _SOURCED, str(path.resolve())]
        subprocess.run(
            command, check=False, cwd=name, env=environment, timeout=20, stdin=subprocess.DEVNULL, capture_output=True
        )
        heard = said.read_text().replace(name, "~") if said.exists() else ""
        calls = [each.split("\0") for each in heard.split("\0\0")]
    return next((flags for each in calls if "batch_size" in " ".join(flags := _flags(each))), {})


def _flags(words: list[str]) -> dict[str, Any]:
    """Return the flags behind the program's name, and the precision that accelerate's launcher is told."""
    start = next((index for index, each in enumerate(words) if each.endswith(".py") or each in ("-m", "--module")), 0)
    told = _pairs(words[:start]).get("mixed_precision") if words[0] == "launch" else None
    return {**_pairs(words[start + 1 :]), **({} if told is None else {"accelerate_launch": {"mixed_precision": told}})}


def _pairs(words: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.lstrip("-").replace("-", "_").partition("=")
            found[name] = [value] if equals else []
        elif name:
            found[name].append(word)
    return {name: " ".join(each) for name, each in found.items()}


def _with_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _with_yacs(path: Path) -> Any:
    """Merge a config into detectron2's defaults, as ``cfg.merge_from_file`` does; projects' own keys are let in."""
    node = importlib.import_module("fvcore.common.config").CfgNode
    defaults = _detectron2(path, "config/defaults.py", CfgNode=node)._C.clone()
    loaded = node.load_yaml_with_base(str(path), allow_unsafe=True)
    loaded.pop("VERSION", None)
    defaults.set_new_allowed(True)
    _let_in(defaults)
    defaults.merge_from_other_cfg(node(loaded))
    return json.loads(json.dumps(defaults, default=str))


def _let_in(node: Any) -> None:
    node.__dict__["__new_allowed__"] = True
    for each in node.values():
        if hasattr(each, "set_new_allowed"):
            _let_in(each)


def _with_lazy_config(path: Path) -> Any:
    omegaconf = importlib.import_module("omegaconf").OmegaConf
    with_stand_ins = _StandIns(("detectron2", "fvcore", "iopath", "cloudpickle", "torch", "torchvision"))
    sys.meta_path.insert(0, with_stand_ins)
    before = set(sys.modules)
    try:
        return omegaconf.to_container(_lazy_config(path).load(str(path)), resolve=False)
    finally:
        sys.meta_path.remove(with_stand_ins)
        for name in set(sys.modules) - before:
            if with_stand_ins.is_stood_in(name):
                del sys.modules[name]


def _lazy_config(path: Path) -> Any:
    """Run ``detectron2/config/lazy.py`` of the checkout, and make it what the stand-ins give for it."""
    files = importlib.import_module("detectron2.utils.file_io")
    files.PathManager = types.SimpleNamespace(  # type: ignore[attr-defined]  # a stand-in has what it is given
        open=open, isfile=lambda each: Path(each).is_file(), isdir=lambda each: Path(each).is_dir()
    )
    lazy = _detectron2(path, "config/lazy.py")
    lazy._convert_target_to_string = repr
    sys.modules[lazy.__name__] = lazy
    config = importlib.import_module("detectron2.config")
    config.LazyCall, config.LazyConfig = lazy.LazyCall, lazy.LazyConfig  # type: ignore[attr-defined]  # as above
    zoo = importlib.import_module("detectron2.model_zoo")
    root = _checkout(path) / "configs"
    zoo.get_config = lambda name, *_: lazy.LazyConfig.load(str(root / name))  # type: ignore[attr-defined]  # as above
    importlib.import_module("detectron2").model_zoo = zoo  # type: ignore[attr-defined]  # as above
    return lazy.LazyConfig


def _checkout(path: Path) -> Path:
    return next(each for each in path.parents if (each / "detectron2" / "config" / "defaults.py").is_file())


def _detectron2(path: Path, source: str, **names: Any) -> Any:
    """Run one of detectron2's own sources from the checkout around a config."""
    file = _checkout(path) / "detectron2" / source
    module = types.ModuleType(f"detectron2.{source.removesuffix('.py').replace('/', '.')}")
    module.__file__ = str(file)
    vars(module).update(names)
    text = file.read_text(encoding="utf-8").replace("from .config import CfgNode as CN", "CN = CfgNode")
    exec(compile(text, str(file), "exec"), vars(module))  # noqa: S102 - detectron2's own loader is what is wanted here
    return module


class _Named:
    """Something of a module that is not there; calls and members are its spelling."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name in ("__name__", "__qualname__"):
            return self._name
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _Named(f"{self._name}({args}, {kwargs})")

    def __mro_entries__(self, _bases: Any) -> tuple[type, ...]:
        return ()

    def __deepcopy__(self, _memo: Any) -> _Named:
        return self

    def __repr__(self) -> str:
        return self._name


class _StandInModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(f"{self.__name__}.{name}")


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every module of some packages."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def is_stood_in(self, name: str) -> bool:
        """Say whether a module is one of these packages'."""
        return name.partition(".")[0] in self._packages

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the stand-in of a module."""
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if self.is_stood_in(fullname) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Make the stand-in."""
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Make the stand-in a package."""
        module.__path__ = []


_LOADERS: dict[str, Callable[[Path], Any]] = {
    "mmengine": _with_mmengine,
    "openmmlab-0.x": _with_mmengine,
    "lightning-hydra": _with_hydra,
    "llama-factory": _with_omegaconf,
    "axolotl": _with_pyyaml,
    "accelerate": _with_pyyaml,
    "huggingface": _with_pyyaml_or_bash,
    "launch-script": _with_bash,
    "detectron2": _with_yacs,
    "detectron2-lazy": _with_lazy_config,
    "deepspeed": _with_json,
}
