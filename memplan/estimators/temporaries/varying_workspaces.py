"""Workspaces of convolutions in steps on batches that vary in size, as cuDNN sizes them for some of these batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.temporaries.convolutions import on_the_lines
from memplan.estimators.temporaries.ruled_blocks import no_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from memplan.estimators.temporaries.convolutions import Convolution, GrowingConvolution, Workspaces


@dataclass(frozen=True, slots=True, kw_only=True)
class VaryingConvolution:
    """A convolution whose lengths lie on lines through those for two batches.

    Args:
        worst: the call on the worst batch.
        typical: the same call on a typical one.
        typical_share: size of the typical batch as a share of the worst's.
    """

    worst: GrowingConvolution
    typical: GrowingConvolution
    typical_share: float

    def at(self, micro_batch_size: int, share: float) -> Convolution:
        """Return the call on a batch of so many samples and of this share of the worst's size."""
        worst, typical = (each.at(micro_batch_size) for each in (self.worst, self.typical))
        lengths = list(zip(worst.input_shape, typical.input_shape, strict=True))
        power = 1 / max(sum(most != usual for most, usual in lengths), 1)  # the sides of an image as roots of its size
        position = (1 - share**power) / (1 - self.typical_share**power)
        image = tuple(max(round(most + (usual - most) * position), 1) for most, usual in lengths)
        windows = zip(image[2:], worst.weight_shape[2:], worst.stride, worst.padding, worst.dilation, strict=True)
        space = tuple((size + 2 * pad - gap * (window - 1) - 1) // step + 1 for size, window, step, pad, gap in windows)
        return replace(worst, input_shape=image, output_shape=(image[0], worst.output_shape[1], *space))


@dataclass(frozen=True, slots=True, kw_only=True)
class VaryingWorkspaces:
    """Workspaces of convolutions among the blocks of steps on batches that vary in size.

    Args:
        blocks: block numbers, ascending.
        numbers: index into ``convolutions`` of each of these blocks.
        convolutions: the different calls.
        micro_batch_size: samples of a batch for which bytes are known; None before cuDNN or a rule was asked.
        shares: sizes of batches for which they are, as shares of the worst's, ascending.
        bytes_at_shares: workspace of each call for each of these, shape (calls, shares).
    """

    blocks: npt.NDArray[np.int32] = field(default_factory=no_numbers)
    numbers: npt.NDArray[np.int32] = field(default_factory=no_numbers)
    convolutions: tuple[VaryingConvolution, ...] = ()
    micro_batch_size: int | None = None
    shares: tuple[float, ...] = (1.0,)
    bytes_at_shares: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 1)))

    def calls(self, micro_batch_size: int, shares: Sequence[float]) -> list[list[Convolution]]:
        """Return each call on batches of these shares of the worst's size."""
        return [[each.at(micro_batch_size, share) for share in shares] for each in self.convolutions]

    def sized(
        self, micro_batch_size: int, shares: Sequence[float], workspace_bytes: Mapping[Convolution, int]
    ) -> VaryingWorkspaces:
        """Return the blocks with what their calls take on batches of some shares of the worst's size, ascending."""
        of_calls = [[workspace_bytes[call] for call in calls] for calls in self.calls(micro_batch_size, shares)]
        table = np.array(of_calls, dtype=np.float64).reshape(len(of_calls), len(shares))
        return replace(self, micro_batch_size=micro_batch_size, shares=tuple(shares), bytes_at_shares=table)

    def fill(
        self, sizes: npt.NDArray[np.float64], blocks: npt.NDArray[np.int32], shares: npt.NDArray[np.float64], size: int
    ) -> None:
        """Set the bytes of those blocks that are workspaces; nothing where none was asked about.

        Between two of the shares they lie on the line through both, and other micro-batches are in proportion.

        Args:
            sizes: bytes of each of ``blocks``.
            blocks: numbers of blocks.
            shares: of the batch that each of them belongs to.
            size: micro-batch.
        """
        if self.micro_batch_size is None:
            return
        places = np.flatnonzero(np.isin(blocks, self.blocks))
        rows = self.bytes_at_shares[self.numbers[np.searchsorted(self.blocks, blocks[places])]]
        sizes[places] = on_the_lines(rows, self.shares, shares[places]) * (size / self.micro_batch_size)


def varying_workspaces(worst: Workspaces, typical: Workspaces, typical_share: float) -> VaryingWorkspaces:
    """Return the workspaces that are known for both a worst and a typical batch, block by block.

    Args:
        worst: of the worst batch.
        typical: of a typical one, in steps of the same blocks.
        typical_share: size of the typical batch as a share of the worst's.
    """
    blocks, of_worst, of_typical = np.intersect1d(worst.blocks, typical.blocks, return_indices=True)
    pairs = zip(worst.numbers[of_worst].tolist(), typical.numbers[of_typical].tolist(), strict=True)
    different: dict[tuple[int, int], int] = {}
    numbers = [different.setdefault(pair, len(different)) for pair in pairs]
    return VaryingWorkspaces(
        blocks=blocks,
        numbers=np.array(numbers, dtype=np.int32),
        convolutions=tuple(
            VaryingConvolution(
                worst=worst.convolutions[first], typical=typical.convolutions[second], typical_share=typical_share
            )
            for first, second in different
        ),
    )
