"""Imports of a library, replaced in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tables are those of Linux")

# The C++ library's clock asks the C library for the time, in seconds and nanoseconds.
SCRIPT = """
import ctypes
from memplan.estimators.cudnn.imported_functions import replace_imports

library = ctypes.CDLL("libstdc++.so.6")
now = library._ZNSt6chrono3_V212system_clock3nowEv
now.restype = ctypes.c_int64

@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
def stopped(clock, time):
    (ctypes.c_int64 * 2).from_address(time)[:] = [1, 5]
    return 0

before = now()
replace_imports(library, {b"clock_gettime": stopped, b"imported by nobody": stopped})
print(before > 1_000_000_005, now())
"""


def test_the_library_calls_the_replacement() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["True", "1000000005"], ended.stderr
