"""A guard for CUDA devices in builds of PyTorch for the CPU, where fake tensors of a card are used.

Methods of tensors such as ``copy_`` first make their tensor's device the current one. A build for the CPU has nothing
registered that could (``device_guard_impl_registry`` in ``c10/core/impl/DeviceGuardImplInterface.h``, torch 2.9 to
2.14).
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_CPU, _CUDA = 0, 1  # places of their guards, by ``c10::DeviceType``


@contextmanager
def cuda_guarded() -> Iterator[None]:
    """Let the CPU's guard, which does nothing, stand for that of CUDA while the context is open, if there is none."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 2).in_dll(library, _REGISTRY)
    if guards[_CUDA] is not None:
        yield
        return
    guards[_CUDA] = guards[_CPU]
    try:
        yield
    finally:
        guards[_CUDA] = None
