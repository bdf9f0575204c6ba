"""Convolutions as cuDNN is asked about them, and the workspaces of a timeline that depend on its answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from memplan.estimators.temporaries.ruled_blocks import no_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt


def of_each_dimension(values: Sequence[int], dimensions: int) -> tuple[int, ...]:
    """Return a window's steps, padding or dilation in each dimension of space; one number holds for all."""
    return tuple(values) if len(values) == dimensions else (values[0],) * dimensions


class Pass(StrEnum):
    """Which of a convolution's three kernels runs."""

    FORWARD = "forward"
    INPUT_GRADIENT = "gradient of the input"
    WEIGHT_GRADIENT = "gradient of the weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One call of a convolution kernel, as far as cuDNN's choice of an algorithm depends on it.

    Shapes are those of the forward pass, batch and channels first, with two or three dimensions of space. A transposed
    convolution is the gradient of the input of one whose output is what goes in.

    Args:
        kernel: which pass runs.
        input_shape: of the input, or of its gradient.
        weight_shape: output channels, input channels of a group, window.
        output_shape: of the output, or of its gradient.
        dtype: of all three, by torch's name without ``torch.``.
        channels_last: whether all three are laid out with the channels innermost.
        stride: steps of the window.
        padding: on either side.
        dilation: spacing of the window's elements.
        with_tf32: whether single precision may be rounded to TF32 for tensor cores.
        deterministic: whether only algorithms that repeat their results are chosen from.
    """

    kernel: Pass
    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    dtype: str
    channels_last: bool
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    with_tf32: bool = True
    deterministic: bool = False

    @property
    def samples(self) -> int:
        """Images in the batch."""
        return self.input_shape[0]

    @property
    def window(self) -> tuple[int, ...]:
        """Elements of the window in each dimension of space."""
        return self.weight_shape[2:]

    @property
    def groups(self) -> int:
        """In how many groups the channels are convolved."""
        return self.input_shape[1] // self.weight_shape[1]

    @property
    def has_one_group(self) -> bool:
        """Whether every output channel is made of all input channels."""
        return self.groups == 1

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel is convolved by itself, into one."""
        return self.weight_shape[:2] == (self.input_shape[1], 1)

    @property
    def is_matrix_product(self) -> bool:
        """Whether every pixel is multiplied with one matrix: a window of one pixel that moves by one, no groups."""
        moves_by_one = all(size == 1 for size in (*self.window, *self.stride))
        return self.has_one_group and moves_by_one and not any(self.padding)

    def with_samples(self, samples: int) -> Convolution:
        """Return the same convolution of a batch of another size."""
        return replace(
            self,
            input_shape=(samples, *self.input_shape[1:]),
            output_shape=(samples, *self.output_shape[1:]),
        )

    def of_groups(self, most: int) -> Convolution:
        """Return the convolution of the first groups alone, where there are more."""
        groups = min(self.groups, most)
        if groups == self.groups:
            return self
        read, made = (channels // self.groups * groups for channels in (self.input_shape[1], self.output_shape[1]))
        return replace(
            self,
            input_shape=(self.samples, read, *self.input_shape[2:]),
            weight_shape=(made, *self.weight_shape[1:]),
            output_shape=(self.samples, made, *self.output_shape[2:]),
        )

    def with_channels(self, channels: int) -> Convolution:
        """Return the same convolution of images with another number of channels, all in one group."""
        return replace(
            self,
            input_shape=(self.samples, channels, *self.input_shape[2:]),
            weight_shape=(self.weight_shape[0], channels, *self.window),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionWorkspace:
    """The workspace of a convolution that cuDNN can be asked about.

    Args:
        call: the convolution.
        size_bytes: the workspace as expected, for where cuDNN does not answer; may be 0.
    """

    call: Convolution
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingConvolution:
    """A convolution whose batch is a linear function of the micro-batch.

    Args:
        convolution: the call, at some micro-batch.
        samples_at_zero: constant term of its batch size.
        samples_per_item: linear term.
        is_in_channels: whether the samples lie where channels do, as where the gradient of the weight is differentiated
            (``_convolution_double_backward`` in ``aten/src/ATen/native/Convolution.cpp``).
    """

    convolution: Convolution
    samples_at_zero: int
    samples_per_item: int
    is_in_channels: bool = False

    def at(self, micro_batch_size: int) -> Convolution:
        """Return the call at a micro-batch."""
        samples = self.samples_at_zero + self.samples_per_item * micro_batch_size
        return (
            self.convolution.with_channels(samples) if self.is_in_channels else self.convolution.with_samples(samples)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspaces:
    """The workspaces of convolutions among a timeline's blocks, as far as cuDNN can be asked about them.

    Args:
        blocks: block numbers, ascending.
        numbers: index into ``convolutions`` of each of these blocks.
        convolutions: the different calls.
        has_others: whether other blocks are workspaces too, of calls whose batch is no linear function of the
            micro-batch.
    """

    blocks: npt.NDArray[np.int32] = field(default_factory=no_numbers)
    numbers: npt.NDArray[np.int32] = field(default_factory=no_numbers)
    convolutions: tuple[GrowingConvolution, ...] = ()
    has_others: bool = False

    @property
    def has_any(self) -> bool:
        """Whether any block of the timeline is a workspace of a convolution."""
        return self.has_others or bool(self.blocks.size)

    def calls_at(self, micro_batch_size: int) -> tuple[Convolution, ...]:
        """Return the calls at a micro-batch size."""
        return tuple(each.at(micro_batch_size) for each in self.convolutions)

    def first_calls(self) -> Workspaces:
        """Return the first block of each call alone."""
        numbers, places = np.unique(self.numbers, return_index=True)
        return replace(self, blocks=self.blocks[places], numbers=numbers)

    def replaced_by(self, other: Workspaces, replaced: npt.NDArray[np.bool_]) -> Workspaces:
        """Return these, and another timeline's in the place of some, given whether each block is replaced."""
        kept, taken = ~replaced[self.blocks], replaced[other.blocks]
        blocks = np.concatenate([self.blocks[kept], other.blocks[taken]])
        numbers = np.concatenate([self.numbers[kept], other.numbers[taken] + len(self.convolutions)])
        order = np.argsort(blocks)
        return Workspaces(
            blocks=blocks[order],
            numbers=numbers[order],
            convolutions=(*self.convolutions, *other.convolutions),
            has_others=self.has_others or other.has_others,
        )

    def sized(self, sizes: Sequence[int], workspace_bytes: Mapping[Convolution, int]) -> SizedWorkspaces:
        """Return the blocks with what their calls take at some micro-batch sizes, in ascending order."""
        of_calls = [[workspace_bytes[each.at(size)] for size in sizes] for each in self.convolutions]
        return SizedWorkspaces(
            blocks=self.blocks,
            numbers=self.numbers,
            sizes=tuple(sizes),
            bytes_at_sizes=np.array(of_calls, dtype=np.float64).reshape(len(of_calls), len(sizes)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedWorkspaces:
    """Workspaces of convolutions as they are expected, or as cuDNN sizes them, at some micro-batch sizes.

    Args:
        blocks: block numbers, ascending.
        numbers: row of ``bytes_at_sizes`` of each of these blocks.
        sizes: these micro-batch sizes, ascending.
        bytes_at_sizes: workspace of each call at each of these sizes, shape (calls, sizes).
    """

    blocks: npt.NDArray[np.int32]
    numbers: npt.NDArray[np.int32]
    sizes: tuple[int, ...]
    bytes_at_sizes: npt.NDArray[np.float64]

    def block_bytes(self, micro_batch_size: int) -> npt.NDArray[np.float64]:
        """Return the bytes of each of ``blocks`` at a micro-batch size.

        Between two of the sizes they lie on the line through both, and beyond the largest they grow in proportion. An
        algorithm that is taken for sizes in between only is not seen.
        """
        known = min(micro_batch_size, self.sizes[-1])
        of_calls = on_the_lines(self.bytes_at_sizes, self.sizes, known)
        of_blocks: npt.NDArray[np.float64] = of_calls[self.numbers] * (micro_batch_size / known)
        return of_blocks


def on_the_lines(
    table: npt.NDArray[np.float64], points: Sequence[float], at: npt.NDArray[np.float64] | float
) -> npt.NDArray[np.float64]:
    """Return each row's value at one point, or at one of its own, between the columns' ascending points."""
    rows, places = np.arange(len(table)), np.interp(at, points, np.arange(len(points)))
    below, above = np.floor(places).astype(int), np.ceil(places).astype(int)
    at_below = table[rows, below]
    found: npt.NDArray[np.float64] = at_below + (table[rows, above] - at_below) * (places - below)
    return found
