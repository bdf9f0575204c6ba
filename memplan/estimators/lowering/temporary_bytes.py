"""Bytes that a kernel allocates for itself while it runs, which no dispatch mode sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from memplan.estimators.temporaries.convolutions import ConvolutionWorkspace
    from memplan.estimators.temporaries.ruled_blocks import RuledBlock

INT64_BYTES, FP32_BYTES = 8, 4  # of an index, and of what kernels accumulate in

# Blocks in the order in which they are allocated, each by its bytes or by what they follow from; one of 0 bytes is not
# allocated. A tuple among them is a scope: its blocks are allocated there, and freed before the next one is.
Blocks: TypeAlias = "tuple[int | ConvolutionWorkspace | RuledBlock | Blocks, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporaryBytes:
    """Blocks that one operator allocates beside its results, by lifetime, and which result comes first.

    Args:
        until_return: allocated before all else, freed when the operator returns.
        throughout: allocated after those, freed before what is allocated last.
        before_results: freed before the results are allocated.
        around_results: allocated before the results, freed right after them.
        between_results: allocated after the first result, freed before the next.
        after_results: allocated after all results, freed together.
        before_return: allocated once all those are freed, freed when the operator returns.
        second_first: whether the second result is allocated before the first.
        results_on_host: how many of the last results lie in host memory, although fake tensors show them on the card.
    """

    until_return: Blocks = ()
    throughout: Blocks = ()
    before_results: Blocks = ()
    around_results: Blocks = ()
    between_results: Blocks = ()
    after_results: Blocks = ()
    before_return: Blocks = ()
    second_first: bool = False
    results_on_host: int = 0

    def __add__(self, other: TemporaryBytes) -> TemporaryBytes:
        """Return the blocks of two rules for one kernel, each lifetime's in the order of the rules."""
        return TemporaryBytes(
            until_return=self.until_return + other.until_return,
            throughout=self.throughout + other.throughout,
            before_results=self.before_results + other.before_results,
            around_results=self.around_results + other.around_results,
            between_results=self.between_results + other.between_results,
            after_results=self.after_results + other.after_results,
            before_return=self.before_return + other.before_return,
            second_first=self.second_first or other.second_first,
            results_on_host=self.results_on_host + other.results_on_host,
        )


NO_TEMPORARIES = TemporaryBytes()

# What an operator's kernel takes, given its positional arguments and what it returned.
Rule: TypeAlias = "Callable[[tuple[Any, ...], Any], TemporaryBytes]"


def temporaries_by(
    tables: Iterable[Mapping[str, Rule]], operator: str, args: tuple[Any, ...], result: Any
) -> TemporaryBytes:
    """Return what all rules for an operator's kernel say, in the order of their tables.

    Args:
        tables: rules by operator name without overload, such as ``aten.embedding_dense_backward``.
        operator: such a name.
        args: the operator's positional arguments.
        result: what it returned.
    """
    return sum((rules[operator](args, result) for rules in tables if operator in rules), NO_TEMPORARIES)
