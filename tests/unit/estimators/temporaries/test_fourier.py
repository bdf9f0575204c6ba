"""What Fourier transforms of images take."""

from __future__ import annotations

import pytest

from memplan.estimators.temporaries.convolutions import Pass
from memplan.estimators.temporaries.fourier import fourier_bytes
from tests.convolution_calls import call

ONE_PAIR = 32 * 17 * 2 * 4  # bytes of a tile's transform


def of_side(side: int, window: int = 3, channels: int = 2, samples: int = 1) -> int:
    image = (samples, channels, side, side)
    return fourier_bytes(call((channels, channels, window, window), input_shape=image, output_shape=image))


def test_every_pair_of_channels_and_every_image_are_transformed_and_images_copied() -> None:
    copies = 2 * 2 * 16 * 16 * 4
    assert of_side(16) == copies + ONE_PAIR * (2 * 2 + 2 + 2)
    assert of_side(16, samples=5) == 5 * copies + ONE_PAIR * (2 * 2 + 5 * (2 + 2))


@pytest.mark.parametrize(("side", "window", "tiles"), [(30, 3, 1), (31, 3, 2), (64, 3, 2), (28, 5, 1), (29, 5, 2)])
def test_two_tiles_at_most_are_transformed_at_once(side: int, window: int, tiles: int) -> None:
    """A tile makes as many pixels as the window finds whole in it."""
    assert of_side(side, window) == 2 * 2 * side * side * 4 + ONE_PAIR * (2 * 2 + tiles * (2 + 2))


def test_tiles_are_of_what_the_pass_makes() -> None:
    smaller = {"input_shape": (1, 2, 32, 32), "output_shape": (1, 2, 30, 30)}
    copies = 2 * (32 * 32 + 30 * 30) * 4
    assert fourier_bytes(call((2, 2, 3, 3), **smaller)) == copies + ONE_PAIR * (4 + 4)
    assert fourier_bytes(call((2, 2, 3, 3), Pass.INPUT_GRADIENT, **smaller)) == copies + ONE_PAIR * (4 + 2 * 4)


@pytest.mark.parametrize(("side", "window", "filled_up"), [(14, 3, 16), (16, 3, 32), (30, 3, 32), (30, 5, 64)])
def test_whole_images_are_transformed_for_the_gradient_of_the_weight(side: int, window: int, filled_up: int) -> None:
    transformed = filled_up * (filled_up // 2 + 1) * 2
    convolution = call(
        (4, 2, window, window), Pass.WEIGHT_GRADIENT, input_shape=(5, 2, side, side), output_shape=(5, 4, side, side)
    )
    assert fourier_bytes(convolution) == 4 * 5 * ((2 + 2 * 4) * side * side + 2 * transformed * (2 + 4))


@pytest.mark.parametrize(
    ("samples", "side", "channels_out", "told"),
    [(64, 28, 144, 64 * 4 * 1391616), (128, 14, 288, 128 * 4 * 501120)],
)
def test_gradients_of_weights_take_what_cudnn_answers(samples: int, side: int, channels_out: int, told: int) -> None:
    """cuDNN 9.20 on capability 9.0, four groups and 3 x 3 windows; 64 bytes more than this."""
    shapes = {"input_shape": (samples, 288, side, side), "output_shape": (samples, channels_out, side, side)}
    assert fourier_bytes(call((channels_out, 72, 3, 3), Pass.WEIGHT_GRADIENT, **shapes)) == told
