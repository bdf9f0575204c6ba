"""Fake tensors of a card, where no card may be touched or PyTorch is a build for the CPU.

Methods of tensors such as ``copy_`` first make their tensor's device the current one. What does so is registered by the
device's type; a build for the CPU has nothing for cards (``device_guard_impl_registry`` in
``c10/core/impl/DeviceGuardImplInterface.h``, torch 2.9 to 2.14).
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
def no_card_made_current() -> Iterator[None]:
    """Let the guard of the CPU, which does nothing, stand for that of cards while the context is open."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 2).in_dll(library, _REGISTRY)
    own, guards[_CUDA] = guards[_CUDA], guards[_CPU]
    try:
        yield
    finally:
        guards[_CUDA] = own
