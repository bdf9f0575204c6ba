"""By which name another process finds what a module defines; what scripts and notebooks define has none there."""

from __future__ import annotations

import pkgutil
import sys
from typing import TYPE_CHECKING, Any

import cloudpickle

if TYPE_CHECKING:
    from collections.abc import Callable


def goes_by_value(module: str) -> bool:
    """Whether what a module defines is copied, since its name says nothing in another process."""
    return module == "__main__" or module in cloudpickle.list_registry_pickle_by_value()


def reduced_to_name(value: object, function: Callable[..., Any]) -> tuple[Any, ...] | None:
    """Return how to get again what a decorator made of a function, as ``__reduce_ex__`` does it.

    None where it has to be copied: its module goes by value, or has something else under the function's name.
    """
    module, name = function.__module__, function.__qualname__
    if goes_by_value(module) or getattr(sys.modules.get(module), name, None) is not value:
        return None
    return pkgutil.resolve_name, (f"{module}:{name}",)
