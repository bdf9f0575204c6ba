"""Turn a workload source into a workload: the one place that imports and calls the user's code, in a child process."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from typing import TYPE_CHECKING, Any

from memplan.configs.attribute_dict import AttributeDict
from memplan.errors import MemplanError, WorkloadError, hint_on_names
from memplan.torch_settings import apply_torch_settings
from memplan.user_places import error_of_user
from memplan.workload import PickledWorkload, TrainingCommand, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from memplan.workload import WorkloadReference, WorkloadSource


class ConfigNode(AttributeDict):
    """What a workload function receives: nested dicts with attribute access, which libraries' builders accept."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__({name: _as_node(value) for name, value in values.items()})

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, _as_node(value))

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, for what takes no others, such as ``OmegaConf.create``."""
        return {name: _as_plain(value) for name, value in self.items()}


def _as_node(value: Any) -> Any:
    if isinstance(value, dict):
        return ConfigNode(value)
    return type(value)(_as_node(each) for each in value) if isinstance(value, list | tuple) else value


def _as_plain(value: Any) -> Any:
    if isinstance(value, ConfigNode):
        return value.to_dict()
    return type(value)(_as_plain(each) for each in value) if isinstance(value, list | tuple) else value


def load_workload(source: WorkloadSource) -> Workload:
    """Import, call or unpickle the user's workload; the caller should be a child process.

    Raises:
        WorkloadError: it cannot be found, raises, or is not a :class:`Workload`; ``detail`` holds the user's traceback.
    """
    if isinstance(source, TrainingCommand):
        raise WorkloadError("a training command has no workload to load", hint="it is started as it is")
    for folder in reversed(source.search_path):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    if isinstance(source, PickledWorkload):
        if source.torch_settings is not None:
            apply_torch_settings(source.torch_settings)
        made, origin = _unpickled(source), "the workload"
    else:
        made, origin = _called(source), f"workload {source.target!r}"
    if not isinstance(made, Workload):
        hint = "return memplan.Workload(model=..., batch=..., loss=..., optimizer=...)"
        raise WorkloadError(f"{origin} returned a {type(made).__name__}, not a memplan.Workload", hint=hint)
    return made


def let_go_of_payload(source: WorkloadSource) -> None:
    """Free what a workload was loaded from, in a child process that is measured: what it captured is there twice."""
    if isinstance(source, PickledWorkload):
        object.__setattr__(source, "payload", b"")


def _unpickled(source: PickledWorkload) -> object:
    try:
        return pickle.loads(source.payload)  # noqa: S301 - made by the caller's own process
    except MemplanError:
        raise
    except Exception as error:
        raise error_of_user("the workload cannot be rebuilt in a child process", error) from error


def _called(source: WorkloadReference) -> object:
    function = _function_of(source)
    try:
        return function(ConfigNode(source.config))
    except MemplanError:
        raise
    except (Exception, SystemExit) as error:
        raise error_of_user(f"workload {source.target!r} raised", error) from error


def _function_of(source: WorkloadReference) -> Callable[[ConfigNode], object]:
    module_name, _, function_name = source.target.partition(":")
    module = _module_of(source, module_name)
    function: Callable[[ConfigNode], object] | None = getattr(module, function_name, None)
    if not callable(function):
        problem = f"module {module_name!r} has no function {function_name!r}"
        own = [name for name, each in vars(module).items() if getattr(each, "__module__", None) == module_name]
        hint = f"it is {module.__file__}; {hint_on_names(function_name, own) if own else 'it defines none'}"
        raise WorkloadError(f"workload {source.target!r}: {problem}", where=source.config_path, hint=hint)
    return function


def _module_of(source: WorkloadReference, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except MemplanError:
        raise
    except (Exception, SystemExit) as error:
        missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        if missing and f"{name}.".startswith(f"{missing}."):
            raise WorkloadError(
                f"workload {source.target!r}: there is no module {missing!r}",
                where=source.config_path,
                hint=f"it was looked for in {', '.join(source.search_path)} and on sys.path",
            ) from None
        raise error_of_user(
            f"importing workload {source.target!r} failed", error, hint=_sibling(name, missing)
        ) from error


def _sibling(name: str, missing: str) -> str | None:
    """Say how a module beside the workload's own is found, where the workload's package is not looked in."""
    package = name.rpartition(".")[0]
    if not package or not missing or importlib.util.find_spec(f"{package}.{missing.partition('.')[0]}") is None:
        return None
    return f"it lies in {package}: import it as {package}.{missing}, or add that folder to PYTHONPATH"
