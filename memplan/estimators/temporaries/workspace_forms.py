"""What workspaces of convolutions hold, as sizes that follow from the shapes, and the figures that cuDNN may choose by.

An engine copies operands into a layout that its kernels read, keeps sums in parts, or transforms tiles of images.
Convolutions in more than eight groups are often made of eight groups at a time, which then use the same workspace. Of
cuDNN 9.20's first proposals for 2.5 million convolutions, 94 to 99 in 100 take what one of the forms here comes to,
within 1 MiB or 2 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from memplan.estimators.temporaries.fourier import fourier_bytes
from memplan.estimators.temporaries.winograd import winograd_bytes
from memplan.units import ceil_div, round_up

if TYPE_CHECKING:
    from memplan.estimators.temporaries.convolutions import Convolution

NUMBER_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
_SUM_BYTES = 4  # single precision
_TILE_SIDE = 128  # of a matrix product's result
_MOST_EVEN = 32  # beyond this, how many twos divide a number of channels makes no difference
_GROUPS_AT_ONCE = 8


class Transform(StrEnum):
    """Algorithms that transform tiles of the images, the weight and the result, and multiply these."""

    WINOGRAD = "Winograd"
    FOURIER = "Fourier"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceForm:
    """What a workspace holds.

    Args:
        image: whether the input, or its gradient, is copied.
        weight: whether the weight, or its gradient, is copied.
        output: whether the output, or its gradient, is copied.
        channel_step: the channels of each group are filled up to a multiple of this, in copies and in sums.
        sums: gradients of the weight, at least in single precision.
        sums_per_image: the same for each image of the batch.
        transform: of tiles of all three, where these are kept instead.
        by_eight_groups: whether the workspace is for no more than eight groups, one lot of groups after another.
    """

    image: bool = False
    weight: bool = False
    output: bool = False
    channel_step: int = 1
    sums: int = 0
    sums_per_image: int = 0
    transform: Transform | None = None
    by_eight_groups: bool = False

    def bytes_of(self, call: Convolution) -> int:
        """Return the workspace of a convolution."""
        call = self.made_at_once(call)
        if self.transform is not None:
            return winograd_bytes(call) if self.transform is Transform.WINOGRAD else fourier_bytes(call)
        sum_bytes = max(NUMBER_BYTES[call.dtype], _SUM_BYTES)
        copied, summed = self.numbers_of(operand_numbers(call, self.channel_step), call.samples)
        return copied * NUMBER_BYTES[call.dtype] + summed * sum_bytes

    def made_at_once(self, call: Convolution) -> Convolution:
        """Return the part of a convolution that the workspace is for."""
        return call.of_groups(_GROUPS_AT_ONCE) if self.by_eight_groups else call

    def numbers_of(self, operands: tuple[int, int, int], samples: int) -> tuple[int, int]:
        """Return how many numbers are copied and how many are summed, of those in image, weight and output."""
        image, weight, output = operands
        copied = self.image * image + self.weight * weight + self.output * output
        return copied, (self.sums + self.sums_per_image * samples) * weight


def operand_numbers(call: Convolution, channel_step: int) -> tuple[int, int, int]:
    """Return the numbers in image, weight and output, the channels of each group filled up to a multiple."""
    groups = call.groups
    read = round_up(call.weight_shape[1], channel_step)
    made = round_up(call.weight_shape[0] // groups, channel_step)
    image = call.samples * groups * read * prod(call.input_shape[2:])
    output = call.samples * groups * made * prod(call.output_shape[2:])
    return image, call.weight_shape[0] * read * prod(call.window), output


_CHANNEL_STEPS, _STEPS_OF_SUMS = (1, 4, 8, 16, 32, 64), (1, 4, 8, 32)
_SUMS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
FORMS = (
    *(
        WorkspaceForm(image=image, weight=weight, output=output)
        for image, weight, output in product((False, True), repeat=3)
    ),
    *(
        WorkspaceForm(image=True, weight=weight, output=output, channel_step=step)
        for weight, output in product((False, True), repeat=2)
        for step in _CHANNEL_STEPS[1:]
    ),
    WorkspaceForm(sums_per_image=1),
    *(WorkspaceForm(sums=sums) for sums in _SUMS),
    *(
        WorkspaceForm(image=True, output=True, channel_step=step, sums=sums)
        for step in _STEPS_OF_SUMS
        for sums in _SUMS
    ),
    *(WorkspaceForm(image=True, weight=weight, output=True, by_eight_groups=True) for weight in (False, True)),
    *(WorkspaceForm(transform=transform, by_eight_groups=True) for transform in Transform),
)


def choice_figures(call: Convolution) -> tuple[float, ...]:
    """Return what a choice may follow: sizes of a convolution, and of the matrix products that it amounts to."""
    samples, read, *image_sides = call.input_shape
    made, read_of_group, *window = call.weight_shape
    groups = call.groups
    made_of_group = made // groups
    image, output, taps = prod(image_sides), prod(call.output_shape[2:]), prod(window)
    weight = made * read_of_group * taps
    numbers = samples * read * image + weight + samples * made * output
    products = samples * output * weight
    forward_tiles = product_tiles(samples * output, made_of_group) * groups
    input_tiles = product_tiles(samples * image, read_of_group) * groups
    weight_tiles = product_tiles(made_of_group, read_of_group * taps) * groups
    return (
        *(len(window), samples, groups, read, made, read_of_group, made_of_group),
        *(window[0], window[-1], taps, call.stride[0], call.stride[-1], call.padding[-1], call.dilation[-1]),
        *(image_sides[0], image_sides[-1], image, output, samples * image, samples * output),
        *(weight, read_of_group * taps, made_of_group * taps),
        *map(_evenness, (read, made, read_of_group, made_of_group, image, output)),
        *(min(read_of_group, made_of_group), max(read_of_group, made_of_group), made_of_group / read_of_group),
        *(samples * read * image, samples * made * output, products, products / numbers),
        *(forward_tiles, input_tiles, weight_tiles, product_tiles(output, made_of_group)),
        *(products / forward_tiles, samples * output / weight_tiles),
    )


def product_tiles(rows: int, columns: int) -> int:
    """Return in how many tiles the result of a matrix product is made."""
    return ceil_div(rows, _TILE_SIDE) * ceil_div(columns, _TILE_SIDE)


def _evenness(number: int) -> int:
    """Return the largest power of two that divides a number, at most 32."""
    return min(number & -number, _MOST_EVEN)
