"""Bytes as integers, in binary units, with their one way into and out of text; and how numbers are rounded."""

from __future__ import annotations

import re

from memplan.errors import UnitError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

_BINARY_STEPS = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_FACTORS = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": 10**3,
    "m": MIB, "mib": MIB, "mb": 10**6,
    "g": GIB, "gib": GIB, "gb": 10**9,
    "t": TIB, "tib": TIB, "tb": 10**12,
}  # fmt: skip
_FOUR_FIGURES = 999.5  # rounded to three, it would be written as 1.00e+03
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def ceil_div(count: int, step: int) -> int:
    """Return how many steps it takes to reach ``count``: the quotient, rounded up."""
    return -(-count // step)


def round_up(count: int, step: int) -> int:
    """Return the smallest multiple of ``step`` that is no less than ``count``."""
    return ceil_div(count, step) * step


def power_of_two_up_to(number: int) -> int:
    """Return the largest power of two that is no larger; 1 for less than that."""
    return 1 << max(number.bit_length() - 1, 0)


def power_of_two_from(number: int) -> int:
    """Return the smallest power of two that is no smaller."""
    return 1 << max(number - 1, 0).bit_length()


def format_bytes(count_bytes: int) -> str:
    """Write a byte count in the largest binary unit that keeps it at one or above, e.g. ``23.69 GiB``."""
    sign, magnitude = ("-" if count_bytes < 0 else ""), abs(count_bytes)
    for step, unit in _BINARY_STEPS:
        if magnitude >= step:
            value = magnitude / step
            return f"{sign}{value:.2f} {unit}" if value < 100 else f"{sign}{value:.1f} {unit}"
    return f"{sign}{magnitude} B"


def parse_bytes(text: str) -> int:
    """Read a size such as ``24GiB``, ``800M`` or ``1.5 GB`` as bytes.

    ``K M G T`` and ``KiB MiB ...`` are powers of 1024, ``KB MB GB TB`` powers of 1000, no unit means bytes.

    Raises:
        UnitError: the text is not a positive number with one of these units.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None or float(match[1]) <= 0:
        raise UnitError(f"size {text!r} is not understood", hint="write it like 24GiB, 800MiB or 1.5GB")
    return round(float(match[1]) * factor)


def format_rate(per_s: float) -> str:
    """Write how many there are per second with three figures, all of those before the point."""
    return f"{per_s:#.3g}".removesuffix(".") if per_s < _FOUR_FIGURES else f"{per_s:.0f}"


def without_noise(value: float) -> float:
    """Return the number rounded to twelve significant digits, so that 2e-4 * 3 is 0.0006."""
    return float(f"{value:.12g}")
