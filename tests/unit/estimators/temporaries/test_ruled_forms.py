"""What convolutions take by rule on Volta and older cards, and where nothing may be rounded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolution_workspaces import workspace_bytes
from memplan.estimators.temporaries.convolutions import Convolution, Pass
from memplan.units import MIB
from tests.convolution_calls import call, of_all_passes

PASCAL, VOLTA = Generation.BEFORE_VOLTA, Generation.VOLTA
TURING, AMPERE = Generation.TURING, Generation.AMPERE
PHOTOGRAPH = (1, 3, 64, 64)


def test_operands_are_copied_for_voltas_tensor_cores() -> None:
    half = call(dtype="float16")
    assert of_all_passes(half, VOLTA) == (3 * MIB // 2,) * 3
    assert of_all_passes(replace(half, channels_last=True), VOLTA) == (0, 0, 0)
    assert of_all_passes(half, PASCAL) == (0, 0, 0)


def test_the_weights_gradient_of_few_tiles_is_summed_in_parts() -> None:
    of_18_tiles = call((64, 64, 6, 6), Pass.WEIGHT_GRADIENT, dtype="float16")
    of_36_tiles = call((256, 64, 6, 6), Pass.WEIGHT_GRADIENT, dtype="float16", output_shape=(1, 256, 64, 64))
    assert workspace_bytes(of_18_tiles, VOLTA) == MIB + 6 * (64 * 64 * 36 * 4)
    assert workspace_bytes(of_36_tiles, VOLTA) == 5 * MIB // 2 + 256 * 64 * 36 * 2


def test_photographs_are_copied_for_the_weights_gradient_with_their_channels_filled_up() -> None:
    of_threes = call((64, 3, 3, 3), dtype="float16", input_shape=PHOTOGRAPH)
    image_bytes, weight_bytes = 8 * 64 * 64 * 2, 64 * 8 * 9 * 4
    assert of_all_passes(of_threes, VOLTA) == (0, 0, image_bytes + MIB // 2 + 108 * weight_bytes)
    in_last = replace(of_threes, channels_last=True)
    assert of_all_passes(in_last, VOLTA) == (0, 0, image_bytes + 108 * weight_bytes)


def test_weights_of_single_pixels_are_the_same_in_both_layouts() -> None:
    in_steps = call((64, 64, 1, 1), dtype="float16", stride=2)
    assert of_all_passes(in_steps, VOLTA) == (MIB, MIB, MIB)


def test_weight_gradients_of_matrix_products_are_made_image_by_image() -> None:
    product = call((64, 64, 1, 1), with_tf32=False).with_samples(5)
    assert of_all_passes(product, AMPERE) == (0, 0, 5 * 64 * 64 * 4)
    assert of_all_passes(replace(product, dtype="float64"), AMPERE) == (0, 0, 5 * 64 * 64 * 8)
    assert of_all_passes(replace(product, channels_last=True), AMPERE) == (0, 0, 0)
    assert of_all_passes(product, VOLTA) == (0, 0, 0)
    askew = replace(product, input_shape=(5, 64, 7, 7), output_shape=(5, 64, 7, 7))
    assert of_all_passes(askew, AMPERE) == (0, 0, 0)
    of_pixels = replace(product, input_shape=(5, 64, 1, 1), output_shape=(5, 64, 1, 1))
    assert of_all_passes(of_pixels, AMPERE) == (0, 0, 0)


@pytest.mark.parametrize(
    ("convolution", "generation"),
    [
        (call(with_tf32=False), AMPERE),
        (call(dtype="float64"), AMPERE),
        (call(dtype="bfloat16"), TURING),
        (call(), VOLTA),
        (call(dtype="float16", input_shape=(1, 64, 1, 1), output_shape=(1, 64, 1, 1)), VOLTA),
    ],
    ids=["no TF32", "double", "no bfloat16 on Turing", "large windows on Volta", "a pixel"],
)
def test_where_operands_are_read_as_they_lie_nothing_is_taken(convolution: Convolution, generation: Generation) -> None:
    assert of_all_passes(convolution, generation) == (0, 0, 0)
