"""What transforming tiles takes on Volta."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolution_workspaces import workspace_bytes
from memplan.estimators.temporaries.convolutions import Convolution, Pass
from tests.convolution_calls import call, of_all_passes

VOLTA = Generation.VOLTA


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
    ("convolution", "generation"),
    [
        (call((128, 128, 5, 5)), VOLTA),
        (call((128, 128, 3, 3), stride=2), VOLTA),
        (call((128, 128, 3, 3)), Generation.BEFORE_VOLTA),
        (call((128, 64, 3, 3)), VOLTA),
    ],
    ids=["larger windows", "a stride", "Pascal", "few channels"],
)
def test_other_convolutions_without_tensor_cores_take_nothing(convolution: Convolution, generation: Generation) -> None:
    samples, channels = 1, convolution.weight_shape[1]
    fitting = replace(convolution, input_shape=(samples, channels, 64, 64), output_shape=(samples, 128, 64, 64))
    assert of_all_passes(fitting, generation) == (0, 0, 0)
