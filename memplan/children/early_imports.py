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
# Where it is 1, PyTorch counts cards by NVML (torch/cuda/__init__.py): the CUDA driver, once asked, is of no use to a
# fork.
_COUNTS_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def installed_modules(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of this process's modules that memplan or a package in a site folder provides, in order.

    Those of PyTorch and NumPy are left out, which every child's template loads.
    """
    folders = tuple(Path(each) for each in (*site.getsitepackages(), site.getusersitepackages()))
    return tuple(sorted(name for name in names if _is_installed(name, folders)))


def _is_installed(name: str, folders: tuple[Path, ...]) -> bool:
    package = name.partition(".")[0]
    if package == _OWN_PACKAGE:
        return True
    if package in _LOADED_ANYWAY:
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
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
    before = os.environ.get(_COUNTS_BY_NVML)
    os.environ[_COUNTS_BY_NVML] = "1"
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if before is None:
        del os.environ[_COUNTS_BY_NVML]
    else:
        os.environ[_COUNTS_BY_NVML] = before
    if threading.active_count() > 1 or _is_fork_spoilt(is_spoilt):
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this very process, which IMPORTS tells nothing any more


def _is_fork_spoilt(is_spoilt: Callable[[], bool]) -> bool:
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            os._exit(int(is_spoilt()))
        os._exit(1)
    return os.waitpid(pid, 0)[1] != 0
