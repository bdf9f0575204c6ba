"""Base configs of other packages: ``_base_ = 'mmdet::_base_/default_runtime.py'``.

Rules from ``Config._get_cfg_path`` and ``Config._dict_to_config_dict`` (``mmengine/config/config.py`` 0.10): the file
is in the installed package under ``.mim/configs``, and its outermost dicts that name a ``type`` are marked with
the package in ``_scope_``. Nothing of the package is imported.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from memplan.errors import ConfigError

_SCOPE = "_scope_"


def file_in_package(name: str, *, named_at: str) -> Path:
    """Return the file that ``package::path`` stands for.

    Raises:
        ConfigError: the package is not installed.
    """
    package, _, path = name.partition("::")
    folder = package_folder(package)
    if folder is None:
        raise ConfigError(
            f"_base_ {name!r} lies in the package {package!r}, which is not installed",
            where=named_at,
            hint="install it, or copy that config beside this one",
        )
    return folder / ".mim" / "configs" / path


def package_folder(name: str) -> Path | None:
    """Return where a package is installed, without importing it if it is a top-level one; None where it is not."""
    try:
        found = importlib.util.find_spec(name)
    except (ValueError, ModuleNotFoundError):
        return None
    return Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None


def scoped(value: Any, package: str) -> Any:
    """Return a package's values with its name in the outermost dicts that have a ``type``."""
    if isinstance(value, dict):
        if "type" in value:
            return value if value.get(_SCOPE) is not None else {**value, _SCOPE: package}
        return {name: scoped(each, package) for name, each in value.items()}
    return type(value)(scoped(each, package) for each in value) if isinstance(value, list | tuple) else value
