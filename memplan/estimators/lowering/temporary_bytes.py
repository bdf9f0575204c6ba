"""Bytes that a kernel allocates for itself while it runs, which no dispatch mode sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan.estimators.convolutions import Convolution
    from memplan.estimators.reductions import Reduction


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporaryBytes:
    """Bytes that one operator allocates beside its results, by lifetime.

    Args:
        before_results: freed before the results are allocated.
        around_results: allocated before the results, freed right after them.
        between_results: allocated after the first result, freed before the next.
        after_results: allocated after all results, freed when the operator returns.
        before_return: allocated once those are freed, freed when the operator returns.
        between_results_of: the convolution whose workspace ``between_results`` is; None where cuDNN does not run it.
        after_results_of: likewise for ``after_results``.
        before_return_of: the reduction whose partial results ``before_return`` is; None where it is something else.
    """

    before_results: int = 0
    around_results: int = 0
    between_results: int = 0
    after_results: int = 0
    before_return: int = 0
    between_results_of: Convolution | None = None
    after_results_of: Convolution | None = None
    before_return_of: Reduction | None = None

    def __add__(self, other: TemporaryBytes) -> TemporaryBytes:
        """Return the sum of two rules for one kernel, neither of which is about a convolution or reduction."""
        return TemporaryBytes(
            before_results=self.before_results + other.before_results,
            around_results=self.around_results + other.around_results,
            between_results=self.between_results + other.between_results,
            after_results=self.after_results + other.after_results,
            before_return=self.before_return + other.before_return,
        )


NO_TEMPORARIES = TemporaryBytes()
