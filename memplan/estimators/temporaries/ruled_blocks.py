"""Temporaries of kernels whose bytes follow from lengths by a rule with thresholds, at any micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


def no_numbers() -> npt.NDArray[np.int32]:
    """Return the numbers of no blocks."""
    return np.array([], dtype=np.int32)


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

    @property
    def size_bytes(self) -> int:
        """Bytes of the block."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledBlocks:
    """Those blocks of a timeline that follow from rules.

    Args:
        blocks: block numbers, ascending.
        numbers: index into ``different`` of each of these blocks.
        different: the different blocks as functions of the micro-batch.
    """

    blocks: npt.NDArray[np.int32] = field(default_factory=no_numbers)
    numbers: npt.NDArray[np.int32] = field(default_factory=no_numbers)
    different: tuple[GrowingRuledBlock, ...] = ()

    def among(self, kept: npt.NDArray[np.bool_]) -> RuledBlocks:
        """Return those of the blocks that are kept, given whether each block of the timeline is."""
        of_these = kept[self.blocks]
        return replace(self, blocks=self.blocks[of_these], numbers=self.numbers[of_these])

    def block_bytes(self, micro_batch_size: int) -> npt.NDArray[np.int64]:
        """Return the bytes of each of ``blocks`` at a micro-batch size."""
        sizes = [each.at(micro_batch_size).size_bytes for each in self.different]
        of_blocks: npt.NDArray[np.int64] = np.array(sizes, dtype=np.int64)[self.numbers]
        return of_blocks


def ruled_blocks(rule: Callable[..., tuple[int, ...]], *lengths: int) -> tuple[RuledBlock, ...]:
    """Return the blocks that a rule gives for some lengths."""
    return tuple(RuledBlock(rule=rule, place=place, lengths=lengths) for place in range(len(rule(*lengths))))
