"""Kernels written in Triton, which hold locks and what they were compiled to in their process.

Imports no Triton: what is asked here holds for the attributes of versions 3.0 to 3.9.
"""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING, Any

from memplan.children.found_by_name import reduced_to_name

if TYPE_CHECKING:
    from collections.abc import Callable

_SETTINGS = ("version", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline", "launch_metadata")


def reduced_triton_kernel(value: Any) -> tuple[Any, ...] | None:
    """Return how to get a kernel again, as ``__reduce_ex__`` does it; None for anything else.

    A kernel that its module has under its name is found there, and one of a script or notebook is made again.
    """
    if (type(value).__module__, type(value).__name__) != ("triton.runtime.jit", "JITFunction"):
        return None
    named = reduced_to_name(value, value.fn)
    if named is not None:
        return named
    settings = {each: getattr(value, each) for each in _SETTINGS if hasattr(value, each)}
    path = value.fn.__code__.co_filename
    return _made_again, (type(value), value.fn, settings, path, tuple(linecache.getlines(path)))


def _made_again(
    kind: Callable[..., Any], function: Any, settings: dict[str, Any], path: str, lines: tuple[str, ...]
) -> Any:
    """Make a kernel, which reads its own source; that of a notebook is in no file."""
    linecache.cache.setdefault(path, (sum(map(len, lines)), None, list(lines), path))
    return kind(function, **settings)
