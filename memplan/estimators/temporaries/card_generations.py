"""Generations of NVIDIA's cards, by which cuDNN chooses algorithms.

cuDNN 9.20 answers for compute capability 10.3 what it answers for 10.0, and for 12.1 what it answers for 12.0, in all
of 3,600 passes of convolutions each; 8.7 and 11.0 (Jetson) are less like 8.6 and 10.0. For 7.5 it answers one thing
up to 58 multiprocessors, as on a T4, and another from 60 on; for newer cards their number changes nothing.
"""

from __future__ import annotations

from enum import IntEnum

_FEWEST_OF_LARGE_TURING = 60
_MANY = 108  # of an A100


class Generation(IntEnum):
    """A generation of cards, in order; the number is ten times the compute capability that it begins with.

    Of Turing, cards of few multiprocessors are one of their own, with the next number.
    """

    BEFORE_VOLTA = 0
    VOLTA = 70
    TURING = 75
    SMALL_TURING = 76
    A100 = 80
    AMPERE = 86
    ADA = 89
    HOPPER = 90
    BLACKWELL_OF_DATA_CENTRES = 100
    BLACKWELL = 120

    @classmethod
    def of(cls, capability: tuple[int, int], sm_count: int | None) -> Generation:
        """Return the newest generation that is no newer than a compute capability.

        Args:
            capability: of the card.
            sm_count: its multiprocessors; None takes it for one of many.
        """
        major, minor = capability
        found = max(each for each in cls if each <= 10 * major + minor and each is not cls.SMALL_TURING)
        is_small = found is cls.TURING and sm_count is not None and sm_count < _FEWEST_OF_LARGE_TURING
        return cls.SMALL_TURING if is_small else found

    @property
    def described(self) -> tuple[tuple[int, int], int]:
        """Compute capability and multiprocessors by which a card of it may be described."""
        if self is Generation.SMALL_TURING:
            return (7, 5), _FEWEST_OF_LARGE_TURING - 1
        return divmod(int(self), 10), _MANY
