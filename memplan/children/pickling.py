"""Pickling what users define in a script or notebook, so that a child process can run it."""

from __future__ import annotations

import importlib
import io
from types import ModuleType
from typing import Any

import cloudpickle


class CallablePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Cloudpickle, which knows plain modules only, with modules of other classes, such as ``torch.backends.cudnn``."""

    def reducer_override(self, obj: Any) -> Any:
        """Name a module instead of copying it."""
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
            return importlib.import_module, (obj.__name__,)
        return super().reducer_override(obj)


def pickled(value: object) -> bytes:
    """Pickle a value with all that its functions and classes refer to."""
    stream = io.BytesIO()
    CallablePickler(stream).dump(value)
    return stream.getvalue()
