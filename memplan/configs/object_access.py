"""Members of config objects of any kind: read all as plain data, set one by its dotted key.

Mappings, argparse namespaces, dataclasses, and the config objects of OmegaConf, mmcv and mmengine; none of these is
imported for it: the package of an object that is passed in has been imported already.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

_SCALARS = (bool, int, float, str)
_MAX_DEPTH = 12
_NAMESPACES = ("Namespace", "SimpleNamespace")


def plain_values(config: Any, depth: int = 0) -> Any:
    """Return plain nested data; what is neither plain nor a namespace becomes the name of its type."""
    if config is None or isinstance(config, _SCALARS):
        return config
    if depth > _MAX_DEPTH:
        return f"<{type(config).__name__}>"
    if isinstance(config, list | tuple):
        return [plain_values(each, depth + 1) for each in config]
    keyed = _keyed(config)
    if keyed is not None:
        return {str(key): plain_values(each, depth + 1) for key, each in keyed.items()}
    if _has_attributes(config, is_outermost=depth == 0):
        return {name: plain_values(each, depth + 1) for name, each in attributes_of(config).items()}
    return f"<{type(config).__name__}>"


def with_member(config: Any, key: str, value: Any) -> Any:
    """Set the value at a dotted key, missing sections as dicts; return the object, or a copy of a frozen one."""
    return _with(config, key.split("."), value)


def _with(holder: Any, parts: list[str], value: Any) -> Any:
    name, *rest = parts
    member = _with(_member(holder, name), rest, value) if rest else value
    if isinstance(holder, list):
        holder[int(name)] = member
    elif isinstance(holder, tuple):
        return (*holder[: int(name)], member, *holder[int(name) + 1 :])
    elif _keyed(holder) is not None:
        with _extensible(holder):
            holder[_own_key(holder, name)] = member
    elif _is_frozen(holder):
        return dataclasses.replace(holder, **{name: member})
    else:
        setattr(holder, name, member)
    return holder


def _member(holder: Any, name: str) -> Any:
    if isinstance(holder, list | tuple):
        return holder[int(name)]
    if _keyed(holder) is None:
        return getattr(holder, name)
    key = _own_key(holder, name)
    return holder[key] if key in holder and holder[key] is not None else {}


def _own_key(holder: Any, name: str) -> Any:
    return next((key for key in _keyed(holder) or {} if str(key) == name), name)


def _keyed(holder: Any) -> Mapping[Any, Any] | None:
    """Return the mapping that an object is or wraps, as the Config of mmcv and mmengine does; None for all else."""
    if type(holder).__module__.startswith("omegaconf"):  # iterating would resolve ${...} and stop at ???
        container = _omegaconf().OmegaConf.to_container(holder, resolve=False)
        return container if isinstance(container, dict) else None
    if isinstance(holder, Mapping) or is_keyed(holder):
        return holder  # type: ignore[no-any-return]  # what dict() takes as one
    wrapped = getattr(holder, "__dict__", {}).get("_cfg_dict")
    return wrapped if isinstance(wrapped, Mapping) else None


def is_keyed(holder: object) -> bool:
    """Whether an object has keys and values without being a mapping, as ml_collections' ``ConfigDict`` has."""
    kind = type(holder)
    return all(hasattr(kind, each) for each in ("keys", "__getitem__", "__setitem__"))


def _extensible(holder: Any) -> contextlib.AbstractContextManager[Any]:
    """Allow new keys in an OmegaConf config that Hydra has put into struct mode."""
    if type(holder).__module__.startswith("omegaconf"):
        opened: contextlib.AbstractContextManager[Any] = _omegaconf().open_dict(holder)
        return opened
    return contextlib.nullcontext()


def _omegaconf() -> Any:
    return importlib.import_module("omegaconf")


def _has_attributes(holder: Any, *, is_outermost: bool) -> bool:
    """Whether an object's attributes are settings: those of the outermost object are, which may be a plain class."""
    if not hasattr(holder, "__dict__") or (isinstance(holder, type) and dataclasses.is_dataclass(holder)):
        return False
    is_declared = dataclasses.is_dataclass(holder) or hasattr(type(holder), "model_fields")  # the second is pydantic's
    return is_outermost or is_declared or type(holder).__name__ in _NAMESPACES


def attributes_of(holder: Any) -> dict[str, Any]:
    """Return the attributes of an object and those that its classes set, such as ``class CFG: batch_size = 8``."""
    if dataclasses.is_dataclass(holder):
        names = [each.name for each in dataclasses.fields(holder)]
    else:
        kinds = (holder if isinstance(holder, type) else type(holder)).__mro__
        of_kinds = {name: value for kind in reversed(kinds) for name, value in vars(kind).items()}
        names = [name for name, value in of_kinds.items() if not hasattr(value, "__get__")]
        names = list(dict.fromkeys([*names, *(() if isinstance(holder, type) else vars(holder))]))
    return {name: getattr(holder, name) for name in names if not name.startswith("_") and hasattr(holder, name)}


def _is_frozen(holder: Any) -> bool:
    return dataclasses.is_dataclass(holder) and bool(vars(type(holder))["__dataclass_params__"].frozen)
