"""Temporaries of kernels that follow from lengths by a rule with thresholds, at any micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledBlock:
    """One of the blocks that a rule gives; without bytes where the kernel does not need it.

    Args:
        rule: lengths -> bytes of each block, always as many.
        place: which of them this is.
        lengths: what the rule reads; some grow with the micro-batch.
    """

    rule: Callable[..., tuple[int, ...]]
    place: int
    lengths: tuple[int, ...]

    def staging_bytes(self) -> int:
        """Return the bytes of the block."""
        return self.rule(*self.lengths)[self.place]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingRuledBlock:
    """A block whose lengths are linear functions of the micro-batch.

    Args:
        block: the block without samples.
        per_item: linear term of each length.
    """

    block: RuledBlock
    per_item: tuple[int, ...]

    def at(self, micro_batch_size: int) -> RuledBlock:
        """Return the block at a micro-batch size."""
        lengths = zip(self.block.lengths, self.per_item, strict=True)
        return replace(self.block, lengths=tuple(length + each * micro_batch_size for length, each in lengths))


def ruled_blocks(rule: Callable[..., tuple[int, ...]], *lengths: int) -> tuple[RuledBlock, ...]:
    """Return the blocks that a rule gives for some lengths."""
    return tuple(RuledBlock(rule=rule, place=place, lengths=lengths) for place in range(len(rule(*lengths))))
