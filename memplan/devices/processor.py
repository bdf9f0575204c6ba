"""This machine's processor: its name, and the half-precision formats that it has instructions for."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/")
# Flags under which Linux lists what multiplies a format: of x86 (Intel's Architecture Instruction Set Extensions
# Reference) and of Arm (the kernel's "ARM64 ELF hwcaps").
_MULTIPLIED_BY = {
    "bf16": frozenset({"avx512_bf16", "amx_bf16", "bf16"}),
    "fp16": frozenset({"avx512_fp16", "amx_fp16", "asimdhp"}),
}


def processor_name(*, root: Path = _ROOT) -> str:
    """Return the processor's model; its architecture where the kernel does not report it."""
    names = (value for name, value in _lines(root) if name == "model name")
    return next(names, platform.machine())


def half_formats(*, root: Path = _ROOT) -> tuple[str, ...] | None:
    """Return the half-precision formats with multiply instructions; None where the kernel does not report them."""
    flags = next((set(value.split()) for name, value in _lines(root) if name in ("flags", "Features")), None)
    if flags is None:
        return None
    return tuple(name for name, instructions in _MULTIPLIED_BY.items() if flags & instructions)


def _lines(root: Path) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            yield name.strip(), value.strip()
