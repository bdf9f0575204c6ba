"""Bytes that a kernel allocates for itself while it runs, which no dispatch mode sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from memplan.estimators.convolutions import Convolution
    from memplan.estimators.reductions import Reduction
    from memplan.estimators.ruled_blocks import RuledBlock

# One block, by its bytes or a rule, or several in the order in which they are allocated. A tuple among them is a scope:
# its blocks are allocated there, and freed before the next one is.
Blocks: TypeAlias = "int | RuledBlock | tuple[Blocks, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporaryBytes:
    """Blocks that one operator allocates beside its results, by lifetime, and which result comes first.

    Args:
        throughout: allocated before all else, freed before what is allocated last.
        before_results: freed before the results are allocated.
        around_results: allocated before the results, freed right after them.
        between_results: allocated after the first result, freed before the next.
        after_results: allocated after all results, freed together.
        before_return: allocated once all those are freed, freed when the operator returns.
        between_results_of: the convolution whose workspace the last block of ``between_results`` is; None where cuDNN
            does not run it.
        after_results_of: likewise for ``after_results``.
        before_return_of: the reduction whose partial results ``before_return`` is; None where it is something else.
        second_first: whether the second result is allocated before the first.
    """

    throughout: Blocks = 0
    before_results: Blocks = 0
    around_results: Blocks = 0
    between_results: Blocks = 0
    after_results: Blocks = 0
    before_return: Blocks = 0
    between_results_of: Convolution | None = None
    after_results_of: Convolution | None = None
    before_return_of: Reduction | None = None
    second_first: bool = False

    def __add__(self, other: TemporaryBytes) -> TemporaryBytes:
        """Return the blocks of two rules for one kernel, neither of which is about a convolution or reduction."""
        return TemporaryBytes(
            throughout=_together(self.throughout, other.throughout),
            before_results=_together(self.before_results, other.before_results),
            around_results=_together(self.around_results, other.around_results),
            between_results=_together(self.between_results, other.between_results),
            after_results=_together(self.after_results, other.after_results),
            before_return=_together(self.before_return, other.before_return),
            second_first=self.second_first or other.second_first,
        )


NO_TEMPORARIES = TemporaryBytes()


def _together(first: Blocks, second: Blocks) -> Blocks:
    if not first or not second:
        return first or second
    return (*_several(first), *_several(second))


def _several(blocks: Blocks) -> tuple[Blocks, ...]:
    return blocks if isinstance(blocks, tuple) else (blocks,)
