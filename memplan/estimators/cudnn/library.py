"""The one gateway to cuDNN's library: typed descriptors over its C interface. It needs neither card nor torch.

Names and numbers are those of ``cudnn_graph.h`` (cuDNN 9), which keeps them from version to version.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

LIBRARY = "libcudnn.so.9"
_MESSAGE_BYTES = 4096
_MOST_LETTERS = 1 << 16


class Kind(IntEnum):
    """``cudnnBackendDescriptorType_t``."""

    CONVOLUTION = 1
    ENGINE = 2
    ENGINE_CONFIG = 3
    HEURISTICS = 4
    PLAN = 5
    OPERATION_FORWARD = 10
    OPERATION_WEIGHT_GRADIENT = 11
    OPERATION_INPUT_GRADIENT = 12
    OPERATION_GRAPH = 15
    TENSOR = 17
    DEVICE_PROPERTIES = 38


class Type(IntEnum):
    """``cudnnBackendAttributeType_t``."""

    DATA_TYPE = 1
    INT64 = 3
    FLOAT = 4
    CONVOLUTION_MODE = 7
    HEURISTICS_MODE = 8
    NUMERICAL_NOTE = 11
    DESCRIPTOR = 15
    CHAR = 24


# All others are enumerations.
_C_TYPES: dict[Type, Any] = {
    Type.INT64: ctypes.c_int64,
    Type.FLOAT: ctypes.c_float,
    Type.DESCRIPTOR: ctypes.c_void_p,
    Type.CHAR: ctypes.c_char,
}


class Attribute(IntEnum):
    """``cudnnBackendAttributeName_t``."""

    CONVOLUTION_COMPUTE_TYPE = 100
    CONVOLUTION_MODE = 101
    CONVOLUTION_DILATIONS = 102
    CONVOLUTION_STRIDES = 103
    CONVOLUTION_PADDINGS_AFTER = 104
    CONVOLUTION_PADDINGS_BEFORE = 105
    CONVOLUTION_DIMENSIONS = 106
    HEURISTICS_MODE = 200
    HEURISTICS_GRAPH = 201
    HEURISTICS_RESULTS = 202
    HEURISTICS_DEVICE = 204
    ENGINE_CONFIG_ENGINE = 300
    ENGINE_CONFIG_WORKSPACE_BYTES = 303
    PLAN_CONFIG = 401
    PLAN_JSON = 405
    PLAN_DEVICE = 407
    OPERATION_FORWARD = 700
    OPERATION_INPUT_GRADIENT = 706
    OPERATION_WEIGHT_GRADIENT = 712
    GRAPH_OPERATIONS = 801
    TENSOR_ALIGNMENT = 900
    TENSOR_DATA_TYPE = 901
    TENSOR_DIMENSIONS = 902
    TENSOR_STRIDES = 903
    TENSOR_ID = 906
    ENGINE_NUMERICAL_NOTES = 1303
    DEVICE_JSON = 2702


class CudnnError(Exception):
    """CuDNN refused a call; the message is its own."""


class Library:
    """The loaded library.

    Raises:
        OSError: it cannot be loaded.
    """

    def __init__(self) -> None:
        self._functions = ctypes.CDLL(LIBRARY)
        self._functions.cudnnGetVersion.restype = ctypes.c_size_t

    @property
    def version(self) -> str:
        """As in ``9.19.0``, which cuDNN numbers 91900."""
        major, rest = divmod(self._functions.cudnnGetVersion(), 10_000)
        minor, patch = divmod(rest, 100)
        return f"{major}.{minor}.{patch}"

    def call(self, function: str, *arguments: object) -> None:
        """Call a function that returns a status.

        Raises:
            CudnnError: the status is not success.
        """
        status = getattr(self._functions, function)(*arguments)
        if status:
            message = ctypes.create_string_buffer(_MESSAGE_BYTES)
            self._functions.cudnnGetLastErrorString(message, ctypes.c_size_t(_MESSAGE_BYTES))
            raise CudnnError(f"{function}: {message.value.decode(errors='replace')}")


class Descriptor:
    """One descriptor of the library; given back when it is no longer referred to."""

    def __init__(self, library: Library, kind: Kind) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        library.call("cudnnBackendCreateDescriptor", ctypes.c_int(kind), ctypes.byref(self._handle))

    def __del__(self) -> None:
        """Give the descriptor back."""
        if self._handle:
            self._library.call("cudnnBackendDestroyDescriptor", self._handle)

    def set(self, attribute: int, kind: Type, values: Sequence[int] | Sequence[float] | bytes) -> None:
        """Set an attribute to one value or several of a plain type."""
        self._write(attribute, kind, (_c_type(kind) * len(values))(*values))

    def refer_to(self, attribute: int, other: Descriptor) -> None:
        """Set an attribute to another descriptor, which must outlive this one."""
        self._write(attribute, Type.DESCRIPTOR, (ctypes.c_void_p * 1)(other._handle))

    def finalize(self) -> Descriptor:
        """Let cuDNN check the descriptor, and work out what it answers."""
        self._library.call("cudnnBackendFinalize", self._handle)
        return self

    def fill(self, attribute: int, others: Sequence[Descriptor]) -> int:
        """Read an attribute's descriptors into others, as many as these are; return how many there were to read."""
        handles = (ctypes.c_void_p * len(others))(*(each._handle for each in others))  # noqa: SLF001 - of its own kind
        return self._read(attribute, Type.DESCRIPTOR, len(others), handles)

    def numbers(self, attribute: int, kind: Type, at_most: int = 1) -> list[int]:
        """Return an attribute's whole numbers."""
        values = (_c_type(kind) * at_most)()
        count = self._read(attribute, kind, at_most, values)
        return [int(each) for each in values[:count]]

    def text(self, attribute: int) -> str:
        """Return an attribute that is text."""
        letters = ctypes.create_string_buffer(_MOST_LETTERS)
        self._read(attribute, Type.CHAR, _MOST_LETTERS, letters)
        return letters.value.decode()

    def _write(self, attribute: int, kind: Type, values: ctypes.Array[Any]) -> None:
        count = ctypes.c_int64(len(values))
        self._library.call("cudnnBackendSetAttribute", self._handle, int(attribute), int(kind), count, values)

    def _read(self, attribute: int, kind: Type, at_most: int, into: ctypes.Array[Any]) -> int:
        count = ctypes.c_int64()
        self._library.call(
            "cudnnBackendGetAttribute",
            self._handle,
            int(attribute),
            int(kind),
            ctypes.c_int64(at_most),
            ctypes.byref(count),
            into,
        )
        return count.value


def _c_type(kind: Type) -> Any:
    return _C_TYPES.get(kind, ctypes.c_int)
