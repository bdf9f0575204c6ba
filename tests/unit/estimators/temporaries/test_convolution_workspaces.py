"""What convolutions take by rule, where cuDNN cannot be asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.estimators.temporaries.convolution_workspaces import workspace_bytes
from memplan.estimators.temporaries.convolutions import Convolution, Pass
from memplan.units import MIB

VOLTA, TURING, A100, AMPERE, HOPPER, BLACKWELL = (7, 0), (7, 5), (8, 0), (8, 6), (9, 0), (12, 0)
IMAGE = (1, 64, 64, 64)  # 1 MiB in single precision
IN_THREES, IN_THREES_OF_PHOTOGRAPHS = (64, 64, 3, 3), (64, 3, 3, 3)
PHOTOGRAPH = (1, 3, 64, 64)


def call(
    weight_shape: tuple[int, ...] = (64, 64, 8, 8),  # 1 MiB in single precision
    kernel: Pass = Pass.FORWARD,
    dtype: str = "float32",
    *,
    input_shape: tuple[int, ...] = IMAGE,
    output_shape: tuple[int, ...] = IMAGE,
    channels_last: bool = False,
    stride: int = 1,
    with_tf32: bool = True,
) -> Convolution:
    return Convolution(
        kernel=kernel,
        input_shape=input_shape,
        weight_shape=weight_shape,
        output_shape=output_shape,
        dtype=dtype,
        channels_last=channels_last,
        stride=(stride, stride),
        padding=(0, 0),
        dilation=(1, 1),
        with_tf32=with_tf32,
    )


def of_all_passes(convolution: Convolution, capability: tuple[int, int]) -> tuple[int, ...]:
    return tuple(workspace_bytes(replace(convolution, kernel=each), capability) for each in Pass)


def test_input_weight_and_output_are_copied_for_tensor_cores() -> None:
    assert of_all_passes(call(), AMPERE) == (3 * MIB, 3 * MIB, 3 * MIB)
    assert of_all_passes(call(dtype="float16"), VOLTA) == (3 * MIB // 2, 3 * MIB // 2, 3 * MIB // 2)


def test_the_weights_gradient_of_few_tiles_is_summed_in_parts() -> None:
    assert of_all_passes(call((64, 64, 6, 6)), AMPERE)[-1] == 2 * MIB + 2 * (64 * 64 * 36 * 4)  # 18 tiles
    wide = call((64, 64, 20, 2))  # 20 tiles
    assert of_all_passes(wide, AMPERE)[-1] == 2 * MIB + 64 * 64 * 40 * 4


@pytest.mark.parametrize(
    ("convolution", "capability"),
    [
        (call(), TURING),
        (call(with_tf32=False), AMPERE),
        (call(dtype="float64"), AMPERE),
        (call(dtype="bfloat16"), TURING),
        (call(IN_THREES), TURING),
        (call(dtype="float16", channels_last=True), AMPERE),
        (call(input_shape=(1, 64, 1, 1), output_shape=(1, 64, 1, 1)), AMPERE),
    ],
    ids=[
        "no TF32 on Turing",
        "no TF32",
        "double",
        "no bfloat16 on Turing",
        "small windows",
        "channels-last",
        "a pixel",
    ],
)
def test_where_operands_are_read_as_they_lie_nothing_is_taken(
    convolution: Convolution, capability: tuple[int, int]
) -> None:
    assert of_all_passes(convolution, capability) == (0, 0, 0)


def test_weights_of_single_pixels_are_the_same_in_both_layouts() -> None:
    assert of_all_passes(call((64, 64, 1, 1), stride=2), AMPERE) == (2 * MIB, 2 * MIB, 2 * MIB)


def test_weight_gradients_of_matrix_products_are_made_image_by_image_or_from_copies() -> None:
    large = call((64, 64, 1, 1))  # 16 KiB for one image, where copies would take 2 MiB
    small = replace(large, input_shape=(1, 64, 2, 2), output_shape=(1, 64, 2, 2))  # 1 KiB each
    assert of_all_passes(large, AMPERE) == of_all_passes(large, TURING) == (0, 0, 64 * 64 * 4)
    assert of_all_passes(small, AMPERE) == (0, 0, 2 * 64 * 4 * 4)
    assert of_all_passes(small, TURING) == (0, 0, 64 * 64 * 4)
    assert of_all_passes(large, VOLTA) == (0, 0, 0)


def test_matrices_that_lie_askew_in_half_precision_are_copied() -> None:
    askew = (1, 64, 7, 7)
    product = call((64, 64, 1, 1), dtype="float16", input_shape=askew, output_shape=askew)
    assert of_all_passes(product, AMPERE) == (2 * 64 * 49 * 2,) * 3


def test_photographs_are_copied_for_large_windows() -> None:
    stem = call((64, 3, 8, 8), input_shape=PHOTOGRAPH)
    copied_bytes = (3 * 64 * 64 + 64 * 3 * 64 + 64 * 64 * 64) * 4
    summed_bytes = copied_bytes + 54 * (64 * 3 * 64 * 4)  # two tiles
    assert of_all_passes(stem, AMPERE) == (0, 0, summed_bytes)
    assert of_all_passes(stem, HOPPER) == (copied_bytes, 0, summed_bytes)
    assert of_all_passes(stem, BLACKWELL) == of_all_passes(replace(stem, channels_last=True), HOPPER) == (0, 0, 0)
    assert of_all_passes(call(IN_THREES_OF_PHOTOGRAPHS, input_shape=PHOTOGRAPH), HOPPER) == (0, 0, 0)


def test_in_half_precision_their_channels_are_filled_up() -> None:
    of_threes = call(IN_THREES_OF_PHOTOGRAPHS, dtype="float16", input_shape=PHOTOGRAPH)
    summed_bytes = (8 * 64 * 64 + 64 * 8 * 9) * 2 + 108 * (64 * 8 * 9 * 4)
    assert of_all_passes(of_threes, BLACKWELL) == (0, 0, summed_bytes + 64 * 64 * 64 * 2)
    assert of_all_passes(replace(of_threes, channels_last=True), AMPERE) == (0, 0, summed_bytes)
    stem = replace(of_threes, weight_shape=(64, 3, 8, 8), channels_last=True)
    copied_bytes = (8 * 64 * 64 + 64 * 8 * 64) * 2
    assert of_all_passes(stem, A100) == (copied_bytes, 0, copied_bytes + 54 * (64 * 8 * 64 * 4))
    assert of_all_passes(stem, AMPERE) == (0, 0, copied_bytes + 54 * (64 * 8 * 64 * 4))


def test_small_groups_are_copied_in_half_precision_or_on_hopper() -> None:
    small, large = call((64, 16, 8, 8)), call((64, 32, 8, 8))
    assert workspace_bytes(large, AMPERE) == 2 * MIB + MIB // 2
    assert workspace_bytes(small, AMPERE) == 0
    assert workspace_bytes(small, HOPPER) == 2 * MIB + MIB // 4
    assert workspace_bytes(replace(small, dtype="float16"), AMPERE) == MIB + MIB // 8


def test_what_is_read_in_channels_last_is_copied_to_be_rounded_except_on_hopper() -> None:
    convolution = call((64, 64, 16, 8), channels_last=True)  # 2 MiB
    assert of_all_passes(convolution, AMPERE) == (3 * MIB, 3 * MIB, 2 * MIB)
    assert of_all_passes(convolution, HOPPER) == (0, 0, 0)


def test_volta_transforms_input_weight_and_output_tile_by_tile() -> None:
    wide = (1, 128, 64, 64)
    convolution = call((128, 128, 3, 3), input_shape=wide, output_shape=wide)
    made = 36 * 4 * (128 * 128 + 16 * 16 * (128 + 128))  # 16 tiles of 4 pixels a side
    assert of_all_passes(convolution, VOLTA) == (made, made, 0)


@pytest.mark.parametrize(
    ("side", "inputs", "outputs", "listed_bytes"),
    [(5, 256, 486, 31592448), (19, 512, 486, 150801408), (38, 256, 324, 279207936), (38, 128, 256, 181665792)],
)
def test_the_transforms_take_what_cudnn_itself_answers(side: int, inputs: int, outputs: int, listed_bytes: int) -> None:
    """github.com/Slimakanzer/cudnn-benchmark, out_example.txt: 32 images, windows of 3 x 3, one pixel of padding."""
    shapes = {"input_shape": (32, inputs, side, side), "output_shape": (32, outputs, side, side)}
    assert workspace_bytes(call((outputs, inputs, 3, 3), **shapes), VOLTA) == listed_bytes


def test_the_gradient_of_the_input_counts_the_inputs_tiles() -> None:
    """The same list: 5 x 5 pixels without padding, two tiles a side for the gradient, one for the output of 3 x 3."""
    convolution = call((256, 128, 3, 3), Pass.INPUT_GRADIENT, input_shape=(32, 128, 5, 5), output_shape=(32, 256, 3, 3))
    assert workspace_bytes(convolution, VOLTA) == 11796480


@pytest.mark.parametrize(
    ("convolution", "capability"),
    [
        (call((128, 128, 5, 5)), VOLTA),
        (call((128, 128, 3, 3), stride=2), VOLTA),
        (call((128, 128, 3, 3)), (6, 0)),
        (call((128, 64, 3, 3)), VOLTA),
    ],
    ids=["larger windows", "a stride", "Pascal", "few channels"],
)
def test_other_convolutions_without_tensor_cores_take_nothing(
    convolution: Convolution, capability: tuple[int, int]
) -> None:
    samples, channels = 1, convolution.weight_shape[1]
    fitting = replace(convolution, input_shape=(samples, channels, 64, 64), output_shape=(samples, 128, 64, 64))
    assert of_all_passes(fitting, capability) == (0, 0, 0)
