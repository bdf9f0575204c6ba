"""Generations of NVIDIA's cards, by which cuDNN chooses algorithms.

cuDNN 9.20 answers for compute capability 10.3 what it answers for 10.0, and for 12.1 what it answers for 12.0, in all
of 3,600 passes of convolutions each; 8.7 and 11.0 (Jetson) are less like 8.6 and 10.0.
"""

from __future__ import annotations

from enum import IntEnum


class Generation(IntEnum):
    """A generation of cards; the number is ten times the compute capability that it begins with."""

    BEFORE_VOLTA = 0
    VOLTA = 70
    TURING = 75
    A100 = 80
    AMPERE = 86
    ADA = 89
    HOPPER = 90
    BLACKWELL_OF_DATA_CENTRES = 100
    BLACKWELL = 120

    @classmethod
    def of(cls, capability: tuple[int, int]) -> Generation:
        """Return the newest generation that is no newer than a compute capability."""
        major, minor = capability
        return max(each for each in cls if each <= 10 * major + minor)
