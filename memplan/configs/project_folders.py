"""The folders around a config: those in which its workload may be, and the one that a diff starts from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PROJECT_FILE = "pyproject.toml"
_SOURCES = "src"  # of a project whose package is to be installed to be imported


def search_path_of(config_path: Path, target: str | None = None) -> tuple[str, ...]:
    """Return where a workload's module is looked for: the config's folder, its project's above it, the current.

    Args:
        config_path: the config.
        target: the workload as ``package.module:function``; a ``src`` that holds its package is looked in as well.
    """
    root, current = _project_root(config_path), Path.cwd()
    above = [each for each in config_path.parents if root is not None and each.is_relative_to(root)]
    folders = (config_path.parent, *above, current)
    package = (target or "").partition(":")[0].partition(".")[0]
    sources = [each / _SOURCES for each in folders if package and _holds(each / _SOURCES, package)]
    return tuple(dict.fromkeys(str(each) for each in (*folders, *sources)))


def _holds(folder: Path, package: str) -> bool:
    return (folder / package).is_dir() or (folder / f"{package}.py").is_file()


def _project_root(config_path: Path) -> Path | None:
    """Return the nearest folder above a config that holds ``.git`` or ``pyproject.toml`` or is the current one."""
    current = Path.cwd()
    for folder in config_path.parents:
        if folder == current or (folder / ".git").exists() or (folder / PROJECT_FILE).exists():
            return folder
    return None


def common_root(paths: Sequence[Path]) -> Path:
    """Return the folder a diff's paths are relative to.

    It is the first file's git checkout, else the current folder, else what holds all files.
    """
    checkout = next((each for each in paths[0].parents if (each / ".git").exists()), None)
    for folder in (checkout, Path.cwd()):
        if folder is not None and all(each.is_relative_to(folder) for each in paths):
            return folder
    return Path(os.path.commonpath([each.parent for each in paths]))
