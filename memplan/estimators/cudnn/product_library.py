"""A stand-in for cuBLASLt that finds an algorithm for every product, as cuBLASLt itself does where there is a card.

cuDNN has engines that leave products to cuBLASLt, for windows of one pixel and between Fourier transforms, and proposes
them only where cuBLASLt finds an algorithm; without a card it finds none. Its engines look the library and functions up
by name when they need them, so that the two functions that look up are all that is replaced. What cuBLASLt would take
for itself is not known, and counted as nothing.
"""

from __future__ import annotations

import ctypes
from typing import Any

from memplan.estimators.cudnn.imported_functions import replace_imports

_ENGINES = "libcudnn_engines_precompiled.so.9"
_LIBRARY, _FUNCTIONS = b"libcublasLt", b"cublasLt"
_VERSION = 130_000  # of CUDA 13.0
_SUCCESS = 0
_MOST_ARGUMENTS = 10
_RESULTS, _RESULT_COUNT, _RESULT_BYTES = 8, 9, 96  # arguments of the search, and ``cublasLtMatmulHeuristicResult_t``

_room = ctypes.create_string_buffer(4096)  # what all descriptors are
_process = ctypes.CDLL(None)
_process.dlopen.restype = _process.dlsym.restype = ctypes.c_void_p


def _create(place: int, *_: int | None) -> int:
    ctypes.c_void_p.from_address(place).value = ctypes.addressof(_room)
    return _SUCCESS


def _find_one(*arguments: int) -> int:
    ctypes.memset(arguments[_RESULTS], 0, _RESULT_BYTES)
    ctypes.c_int.from_address(arguments[_RESULT_COUNT]).value = 1
    return _SUCCESS


def _do_nothing(*_: int | None) -> int:
    return _SUCCESS


def _open(name: bytes | None, mode: int) -> int | None:
    wanted = None if name is not None and _LIBRARY in name else name  # a handle is needed, and this process has one
    found: int | None = _process.dlopen(ctypes.c_char_p(wanted), ctypes.c_int(mode))
    return found


def _look_up(library: int | None, name: bytes) -> int | None:
    if name.startswith(_FUNCTIONS):
        return ctypes.cast(_STAND_INS.get(name, _DOES_NOTHING), ctypes.c_void_p).value
    found: int | None = _process.dlsym(ctypes.c_void_p(library), ctypes.c_char_p(name))
    return found


# cuDNN calls these as long as the process lives, so that they must live as long.
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * _MOST_ARGUMENTS)
_CREATES, _FINDS_ONE, _DOES_NOTHING = _FUNCTION(_create), _FUNCTION(_find_one), _FUNCTION(_do_nothing)
_STAND_INS: dict[bytes, Any] = {
    b"cublasLtCreate": _CREATES,
    b"cublasLtMatmulDescCreate": _CREATES,
    b"cublasLtMatmulPreferenceCreate": _CREATES,
    b"cublasLtMatrixLayoutCreate": _CREATES,
    b"cublasLtMatmulAlgoGetHeuristic": _FINDS_ONE,
    b"cublasLtGetVersion": ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: _VERSION),
}
_LOOK_UPS: dict[bytes, Any] = {
    b"dlopen": ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)(_open),
    b"dlsym": ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(_look_up),
}


def find_every_product() -> None:
    """Let cuDNN's engines find the stand-in where they look for cuBLASLt.

    Raises:
        OSError: the engines cannot be loaded, or not be changed.
    """
    replace_imports(ctypes.CDLL(_ENGINES), _LOOK_UPS)
