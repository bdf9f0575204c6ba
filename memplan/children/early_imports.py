"""Modules of installed packages that a template loads before it forks, because every child would."""

from __future__ import annotations

import contextlib
import importlib
import os
import site
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.children.protocol import IMPORTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_OWN_PACKAGE = __name__.partition(".")[0]
_LOADED_ANYWAY = ("torch", "numpy")  # by every template
# PyTorch then counts cards by NVML: the CUDA driver, once asked, is of no use to a fork (torch/cuda/__init__.py).
_ASKS_NO_DRIVER = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def installed_modules(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of this process's modules that memplan or a package in a site folder provides, in order.

    Those of PyTorch and NumPy are left out, which every child's template loads.
    """
    folders = tuple(Path(each) for each in (*site.getsitepackages(), site.getusersitepackages()))
    return tuple(sorted(name for name in names if _is_installed(name, folders)))


def _is_installed(name: str, folders: tuple[Path, ...]) -> bool:
    file, package = getattr(sys.modules.get(name), "__file__", None), name.partition(".")[0]
    if package in (_OWN_PACKAGE, *_LOADED_ANYWAY):
        return package == _OWN_PACKAGE
    return file is not None and any(Path(file).is_relative_to(folder) for folder in folders)


def import_early(is_spoilt: Callable[[], bool]) -> None:
    """In a template: import what its owner has named; begin again without that where forks would be of no use.

    That is where an import has started a thread, which a fork lacks, or woken what a fork cannot use. A module that
    cannot be imported is left to the child, which meets the same where somebody sees it.

    Args:
        is_spoilt: asked in a fork whether it lacks something.
    """
    names = os.environ.pop(IMPORTS, "").split()
    if not names:
        return
    kept = {name: os.environ.get(name) for name in _ASKS_NO_DRIVER}
    os.environ.update(_ASKS_NO_DRIVER)
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    for name, value in kept.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value
    if threading.active_count() > 1 or _is_fork_spoilt(is_spoilt):
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this very process, which IMPORTS tells nothing any more


def _is_fork_spoilt(is_spoilt: Callable[[], bool]) -> bool:
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            os._exit(int(is_spoilt()))
        os._exit(1)
    return os.waitpid(pid, 0)[1] != 0
