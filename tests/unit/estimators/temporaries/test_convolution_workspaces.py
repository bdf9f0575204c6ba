"""What convolutions take by rule, where cuDNN cannot be asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.estimators.temporaries.convolution_workspaces import workspace_bytes
from memplan.estimators.temporaries.convolutions import Convolution, Pass
from memplan.units import MIB
from tests.convolution_calls import call, of_all_passes

VOLTA, TURING, A100, AMPERE, HOPPER, BLACKWELL = (7, 0), (7, 5), (8, 0), (8, 6), (9, 0), (12, 0)
IN_THREES_OF_PHOTOGRAPHS = (64, 3, 3, 3)
PHOTOGRAPH = (1, 3, 64, 64)


def test_input_weight_and_output_are_copied_for_tensor_cores() -> None:
    assert of_all_passes(call(), HOPPER) == (3 * MIB, 3 * MIB, 3 * MIB)
    assert of_all_passes(call(dtype="float16"), VOLTA) == (3 * MIB // 2, 3 * MIB // 2, 3 * MIB // 2)


def test_the_weights_gradient_of_few_tiles_is_summed_in_parts() -> None:
    of_18_tiles, of_32_tiles = call((64, 64, 6, 6)), call()
    weight_bytes = 64 * 64 * 36 * 4
    assert of_all_passes(of_18_tiles, A100)[-1] == 2 * MIB + 6 * weight_bytes  # 108 multiprocessors
    assert of_all_passes(of_18_tiles, AMPERE)[-1] == 2 * MIB + 2 * weight_bytes
    assert of_all_passes(of_18_tiles, HOPPER)[-1] == 2 * MIB + weight_bytes
    assert of_all_passes(of_18_tiles, BLACKWELL)[-1] == 2 * MIB + 12 * weight_bytes
    assert of_all_passes(of_32_tiles, A100)[-1] == 2 * MIB + 3 * MIB
    assert of_all_passes(of_32_tiles, AMPERE)[-1] == 2 * MIB + MIB
    half = replace(of_32_tiles, dtype="bfloat16")
    assert of_all_passes(half, A100)[-1] == MIB + 3 * MIB
    assert of_all_passes(half, AMPERE)[-1] == MIB + MIB // 2


@pytest.mark.parametrize(
    ("convolution", "capability"),
    [
        (call(), TURING),
        (call(with_tf32=False), AMPERE),
        (call(dtype="float64"), AMPERE),
        (call(dtype="bfloat16"), TURING),
        (call((16, 64, 3, 3), output_shape=(1, 16, 64, 64)), TURING),
        (call(dtype="float16", channels_last=True), AMPERE),
        (call(input_shape=(1, 64, 1, 1), output_shape=(1, 64, 1, 1)), AMPERE),
    ],
    ids=[
        "no TF32 on Turing",
        "no TF32",
        "double",
        "no bfloat16 on Turing",
        "few channels on Turing",
        "channels-last",
        "a pixel",
    ],
)
def test_where_operands_are_read_as_they_lie_nothing_is_taken(
    convolution: Convolution, capability: tuple[int, int]
) -> None:
    assert of_all_passes(convolution, capability) == (0, 0, 0)


def test_weights_of_single_pixels_are_the_same_in_both_layouts() -> None:
    assert of_all_passes(call((64, 64, 1, 1), dtype="float16", stride=2), AMPERE) == (MIB, MIB, MIB)


def test_weight_gradients_of_matrix_products_are_made_image_by_image_or_from_copies() -> None:
    large = call((64, 64, 1, 1))  # 16 KiB for one image, where copies would take 2 MiB
    small = replace(large, input_shape=(1, 64, 2, 2), output_shape=(1, 64, 2, 2))  # 1 KiB each
    assert of_all_passes(large, AMPERE) == of_all_passes(large, TURING) == (0, 0, 64 * 64 * 4)
    assert of_all_passes(small, AMPERE) == (0, 0, 2 * 64 * 4 * 4)
    assert of_all_passes(small, TURING) == (0, 0, 64 * 64 * 4)
    assert of_all_passes(large, VOLTA) == (0, 0, 0)


def test_narrow_weight_gradients_of_few_large_images_are_made_from_copies_on_hopper() -> None:
    narrow = call((32, 64, 1, 1), Pass.WEIGHT_GRADIENT, output_shape=(1, 32, 64, 64))
    many = replace(narrow, input_shape=(64, 64, 64, 64), output_shape=(64, 32, 64, 64))
    assert workspace_bytes(narrow, HOPPER) == MIB + MIB // 2
    assert workspace_bytes(narrow, A100) == 64 * 32 * 4
    assert workspace_bytes(many, HOPPER) == 64 * (64 * 32 * 4)
    assert workspace_bytes(replace(narrow, dtype="bfloat16"), HOPPER) == 64 * 32 * 4


def test_tiny_images_that_lie_askew_in_half_precision_are_copied_for_wide_weights() -> None:
    askew = (1, 512, 7, 7)
    product = call((512, 512, 1, 1), dtype="float16", input_shape=askew, output_shape=askew)
    assert of_all_passes(product, AMPERE) == (2 * 512 * 49 * 2,) * 3
    assert of_all_passes(replace(product, weight_shape=(511, 512, 1, 1)), AMPERE)[:2] == (0, 0)
    larger = replace(product, input_shape=(1, 512, 11, 11), output_shape=(1, 512, 11, 11))
    assert of_all_passes(larger, AMPERE) == (0, 0, 2 * 512 * 121 * 2)
    assert of_all_passes(replace(product, dtype="float32", with_tf32=False), AMPERE) == (0, 0, 0)


def test_photographs_are_copied_for_large_windows() -> None:
    stem = call((64, 3, 8, 8), input_shape=PHOTOGRAPH)
    read_bytes, made_bytes = (3 * 64 * 64 + 64 * 3 * 64) * 4, 64 * 64 * 64 * 4
    filled_up_bytes, weight_bytes = 4 * 64 * 64 * 4, 64 * 4 * 64 * 4
    summed_bytes = filled_up_bytes + made_bytes  # and parts of a weight of two tiles
    assert of_all_passes(stem, A100) == (read_bytes + made_bytes, 0, summed_bytes + 54 * weight_bytes)
    assert of_all_passes(stem, AMPERE) == (0, 0, summed_bytes + 18 * weight_bytes)
    assert of_all_passes(stem, HOPPER) == of_all_passes(stem, A100)
    assert of_all_passes(stem, BLACKWELL) == of_all_passes(replace(stem, channels_last=True), HOPPER) == (0, 0, 0)
    assert of_all_passes(call(IN_THREES_OF_PHOTOGRAPHS, input_shape=PHOTOGRAPH), HOPPER) == (0, 0, 0)


def test_patches_of_photographs_are_copied_for_the_weights_gradient_on_a100() -> None:
    patches = call((64, 3, 4, 4), Pass.WEIGHT_GRADIENT, input_shape=PHOTOGRAPH, output_shape=(1, 64, 16, 16), stride=4)
    copied_bytes = (4 * 64 * 64 + 64 * 16 * 16) * 4 + 108 * (64 * 4 * 16 * 4)
    assert (workspace_bytes(patches, A100), workspace_bytes(patches, AMPERE)) == (copied_bytes, 0)


def test_in_half_precision_their_channels_are_filled_up() -> None:
    of_threes = call(IN_THREES_OF_PHOTOGRAPHS, dtype="float16", input_shape=PHOTOGRAPH)
    image_bytes, weight_bytes = 8 * 64 * 64 * 2, 64 * 8 * 9 * 4
    assert of_all_passes(of_threes, A100) == (0, 0, image_bytes + 64 * 64 * 64 * 2 + 108 * weight_bytes)
    assert of_all_passes(replace(of_threes, channels_last=True), AMPERE) == (0, 0, image_bytes + 36 * weight_bytes)
    stem = replace(of_threes, weight_shape=(64, 3, 8, 8), channels_last=True)
    summed_bytes = image_bytes + 54 * (64 * 8 * 64 * 4)
    assert of_all_passes(stem, A100) == (image_bytes + 64 * 8 * 64 * 2, 0, summed_bytes)


def test_small_groups_are_copied_in_half_precision_or_on_hopper() -> None:
    small, large = call((64, 16, 8, 8)), call((64, 32, 8, 8))
    assert workspace_bytes(large, AMPERE) == 2 * MIB + MIB // 2
    assert workspace_bytes(small, AMPERE) == 0
    assert workspace_bytes(small, HOPPER) == 2 * MIB + MIB // 4
    assert workspace_bytes(replace(small, dtype="float16"), AMPERE) == MIB + MIB // 8


def test_what_is_read_in_channels_last_is_copied_to_be_rounded_except_on_hopper() -> None:
    convolution = call((64, 64, 16, 8), channels_last=True)  # 2 MiB
    assert of_all_passes(convolution, AMPERE) == (3 * MIB, 3 * MIB, 4 * MIB)  # and one weight of 64 tiles
    assert of_all_passes(convolution, HOPPER) == (0, 0, 0)


def test_every_channel_becomes_eight_for_the_gradient_of_large_depthwise_windows() -> None:
    shapes = {"input_shape": (64, 96, 28, 28), "output_shape": (64, 96, 28, 28)}
    depthwise = call((96, 1, 7, 7), channels_last=True, **shapes)
    filled_up_bytes = 8 * (64 * 96 * 28 * 28 * 4)
    assert of_all_passes(depthwise, A100) == of_all_passes(depthwise, HOPPER) == (0, 0, filled_up_bytes)
    few, small_window = depthwise.with_samples(63), replace(depthwise, weight_shape=(96, 1, 5, 5))
    assert of_all_passes(few, A100) == (0, 0, filled_up_bytes // 64 * 63)
    for taken_as_it_lies, capability in ((few, HOPPER), (small_window, A100), (depthwise, AMPERE)):
        assert of_all_passes(taken_as_it_lies, capability) == (0, 0, 0)


def test_volumes_are_copied_whatever_their_channels() -> None:
    volume = replace(
        call((32, 32, 3, 3, 3), input_shape=(1, 32, 16, 16, 16), output_shape=(1, 32, 16, 16, 16)),
        stride=(1, 1, 1),
        padding=(1, 1, 1),
        dilation=(1, 1, 1),
    )
    assert workspace_bytes(volume, AMPERE) == (2 * 32 * 16**3 + 32 * 32 * 27) * 4


def test_a_card_between_two_generations_follows_the_older_in_all_passes() -> None:
    photographs = call((64, 3, 7, 7), input_shape=(4, 3, 64, 64), output_shape=(4, 64, 32, 32), stride=2)
    assert of_all_passes(photographs, (10, 3)) == of_all_passes(photographs, (10, 0)) != (0, 0, 0)
