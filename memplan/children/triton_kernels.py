"""Kernels written in Triton, which hold locks and what they were compiled to in their process.

Imports no Triton: what is asked here holds for the attributes of versions 3.0 to 3.9.
"""

from __future__ import annotations

import linecache
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_SETTINGS = ("version", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline", "launch_metadata")


def is_triton_kernel(value: Any) -> bool:
    """Whether ``triton.jit`` has made it."""
    return (type(value).__module__, type(value).__name__) == ("triton.runtime.jit", "JITFunction")


def reduced_triton_kernel(kernel: Any) -> tuple[Any, ...]:
    """Return how to make a kernel of a script or notebook again, as ``__reduce_ex__`` does it."""
    settings = {name: getattr(kernel, name) for name in _SETTINGS if hasattr(kernel, name)}
    path = kernel.fn.__code__.co_filename
    return _made_again, (type(kernel), kernel.fn, settings, path, tuple(linecache.getlines(path)))


def is_found_by_name(kernel: Any) -> bool:
    """Whether a kernel is what its module, other than a script, has under its name."""
    module = kernel.fn.__module__
    return module != "__main__" and getattr(sys.modules.get(module), kernel.fn.__qualname__, None) is kernel


def _made_again(
    kind: Callable[..., Any], function: Any, settings: dict[str, Any], path: str, lines: tuple[str, ...]
) -> Any:
    """Make a kernel, which reads its own source; that of a notebook is in no file."""
    linecache.cache.setdefault(path, (sum(map(len, lines)), None, list(lines), path))
    return kind(function, **settings)
