"""Bytes that a kernel takes for itself while it runs, which no dispatch mode can see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan.estimators.convolutions import Convolution


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenBytes:
    """What one operator takes beside its results, by when it is alive.

    Args:
        before: given back before the results are made.
        around: alive while the results are made, given back right after.
        between: taken after the first result is made, given back before the next is.
        beside: taken after that, given back when the operator returns.
        between_of: the convolution whose workspace ``between`` is; None where it is none that cuDNN runs.
        beside_of: likewise for ``beside``.
    """

    before: int = 0
    around: int = 0
    between: int = 0
    beside: int = 0
    between_of: Convolution | None = None
    beside_of: Convolution | None = None

    def __add__(self, other: HiddenBytes) -> HiddenBytes:
        """Return what two rules for one kernel say together; neither may be about a convolution."""
        return HiddenBytes(
            before=self.before + other.before,
            around=self.around + other.around,
            between=self.between + other.between,
            beside=self.beside + other.beside,
        )


NOTHING_HIDDEN = HiddenBytes()
