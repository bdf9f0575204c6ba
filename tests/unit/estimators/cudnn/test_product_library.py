"""The stand-in for cuBLASLt, called as cuDNN calls it."""

from __future__ import annotations

import ctypes

from memplan.estimators.cudnn import product_library


def looked_up(name: bytes) -> int | None:
    return product_library._look_up(None, name)


def function(name: bytes, *kinds: object) -> object:
    address = looked_up(name)
    assert address is not None
    return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(address)


def test_a_search_finds_one_algorithm_without_a_workspace() -> None:
    results, count = (ctypes.c_uint64 * 12)(*[7] * 12), ctypes.c_int(0)
    search = function(b"cublasLtMatmulAlgoGetHeuristic", *[ctypes.c_void_p] * 7, ctypes.c_int, *[ctypes.c_void_p] * 2)
    assert search(*[None] * 7, 1, ctypes.byref(results), ctypes.byref(count)) == 0
    assert count.value == 1
    assert list(results) == [0] * 12


def test_what_is_created_has_an_address() -> None:
    for name in (b"cublasLtCreate", b"cublasLtMatmulDescCreate", b"cublasLtMatrixLayoutCreate"):
        made = ctypes.c_void_p()
        assert function(name, ctypes.c_void_p)(ctypes.byref(made)) == 0
        assert made.value


def test_other_functions_of_it_do_nothing_and_those_of_other_libraries_stay() -> None:
    assert function(b"cublasLtMatmulDescDestroy", ctypes.c_void_p)(None) == 0
    assert looked_up(b"getpid") == ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value


def test_the_library_is_found_where_it_is_not_installed() -> None:
    assert product_library._open(b"libcublasLt.so.13", 2)
    assert not product_library._open(b"libnot_there.so.13", 2)
