"""Pickling what users define in a script or notebook, so that a child process can run it."""

from __future__ import annotations

import io
import pkgutil
import sys
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from memplan.children.compiled_modules import reduced_compiled_module
from memplan.children.custom_operators import reduced_custom_operator
from memplan.children.triton_kernels import reduced_triton_kernel

if TYPE_CHECKING:
    from collections.abc import Callable


class CallablePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Cloudpickle, with what it cannot find by name, and with the storage of several tensors once.

    By name go modules of other classes, such as ``torch.backends.cudnn``, PyTorch's operators, and classes that go by
    another name than they were defined with, such as ``torch.nn.attention.SDPBackend``. Views of one storage, such as
    the samples of a data set in memory, would each take all of it along: ``Tensor.__reduce_ex__`` makes a
    ``TypedStorage`` of its own every time. Compiled modules are compiled again, and kernels in Triton and operators in
    Python made again. Code keeps the name of its file, which cloudpickle takes off from 3.1.3 on: by it a user's own
    code is told from others'.
    """

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self._storages: dict[tuple[int, Any], Any] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Name an object instead of copying it, and refer to a storage that is there already."""
        if (type(obj).__module__, type(obj).__name__) == ("torch.storage", "TypedStorage"):
            first = self._storages.setdefault((obj._cdata, obj.dtype), obj)  # noqa: SLF001 - as torch.save knows it
            return super().reducer_override(obj) if first is obj else (_itself, (first,))
        if isinstance(obj, CodeType):
            return _in_its_file, (obj.co_filename, *self.dispatch_table[CodeType](obj))
        reduced = reduced_compiled_module(obj) or reduced_triton_kernel(obj) or reduced_custom_operator(obj)
        if reduced is not None:
            return reduced
        name = _found_as(obj)
        return super().reducer_override(obj) if name is None else (pkgutil.resolve_name, (name,))


def _found_as(obj: object) -> str | None:
    """Return the name by which an object is found; None where that is cloudpickle's part."""
    if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
        return obj.__name__
    if type(obj).__module__ == "torch._ops":
        return f"torch.ops.{obj}"
    if isinstance(obj, type) and obj.__name__ != obj.__qualname__:
        is_there = getattr(sys.modules.get(obj.__module__), obj.__name__, None) is obj
        return f"{obj.__module__}:{obj.__name__}" if is_there else None
    return None


def _in_its_file(file_name: str, make: Callable[..., CodeType], parts: tuple[Any, ...]) -> CodeType:
    return make(*parts).replace(co_filename=file_name)


def _itself(value: Any) -> Any:
    return value


def pickled(value: object) -> bytes:
    """Pickle a value with all that its functions and classes refer to."""
    stream = io.BytesIO()
    CallablePickler(stream).dump(value)
    return stream.getvalue()
