"""Up to how many channels kernels for single precision do without copies, on cards of each generation."""

from __future__ import annotations

import pytest

from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolutions import Convolution, Pass
from memplan.estimators.temporaries.single_precision_copies import are_images_copied, is_written_in_place

WITH_TENSOR_CORES = [each for each in Generation if each >= Generation.A100]
A100, AMPERE, ADA, HOPPER, BLACKWELL_OF_DATA_CENTRES, BLACKWELL = WITH_TENSOR_CORES


def call(kernel: Pass, inputs: int, outputs: int, *, window: int = 3, stride: int = 1, side: int = 32) -> Convolution:
    return Convolution(
        kernel=kernel,
        input_shape=(8, inputs, side, side),
        weight_shape=(outputs, inputs, window, window),
        output_shape=(8, outputs, side // stride, side // stride),
        dtype="float32",
        channels_last=False,
        stride=(stride, stride),
        padding=(window // 2, window // 2),
        dilation=(1, 1),
    )


@pytest.mark.parametrize("kernel", Pass)
@pytest.mark.parametrize("generation", WITH_TENSOR_CORES)
def test_wide_convolutions_copy_their_images(kernel: Pass, generation: Generation) -> None:
    assert are_images_copied(call(kernel, 256, 256), generation)


@pytest.mark.parametrize(("generation", "channels"), [(A100, 0), (AMPERE, 32), (ADA, 32), (HOPPER, 0), (BLACKWELL, 0)])
def test_forward_passes_to_few_channels_copy_nothing(generation: Generation, channels: int) -> None:
    narrow, wider = (call(Pass.FORWARD, 64, outputs) for outputs in (max(channels, 16), channels + 1))
    assert are_images_copied(narrow, generation) is (channels == 0)
    assert are_images_copied(wider, generation)


def test_with_steps_it_is_the_channels_read_that_count() -> None:
    assert not are_images_copied(call(Pass.FORWARD, 32, 128, stride=2), AMPERE)
    assert not are_images_copied(call(Pass.FORWARD, 64, 128, stride=2), ADA)
    assert are_images_copied(call(Pass.FORWARD, 64, 128, stride=2), AMPERE)


@pytest.mark.parametrize(
    ("generation", "channels"), [(A100, 17), (AMPERE, 33), (ADA, 33), (BLACKWELL_OF_DATA_CENTRES, 65), (BLACKWELL, 65)]
)
def test_results_of_enough_channels_are_written_in_place(generation: Generation, channels: int) -> None:
    assert is_written_in_place(call(Pass.FORWARD, 64, channels), generation)
    assert not is_written_in_place(call(Pass.INPUT_GRADIENT, channels, 64), generation)


def test_on_hopper_no_result_is_written_in_place() -> None:
    assert not is_written_in_place(call(Pass.FORWARD, 64, 2048), HOPPER)


def test_sums_over_many_channels_are_not_written_in_place() -> None:
    assert not is_written_in_place(call(Pass.FORWARD, 1024, 256), A100)
    assert is_written_in_place(call(Pass.FORWARD, 1024, 512), A100)
    assert is_written_in_place(call(Pass.FORWARD, 1024, 256, window=1, stride=2), A100)


@pytest.mark.parametrize("generation", [A100, AMPERE, ADA])
def test_gradients_of_few_input_channels_copy_nothing_unless_in_steps(generation: Generation) -> None:
    assert not are_images_copied(call(Pass.INPUT_GRADIENT, 32, 128), generation)
    assert are_images_copied(call(Pass.INPUT_GRADIENT, 33, 128), generation)
    assert are_images_copied(call(Pass.INPUT_GRADIENT, 32, 128, stride=2), generation)


def test_gradients_of_large_images_are_computed_in_place_on_ada() -> None:
    large, small = (call(Pass.INPUT_GRADIENT, 256, 128, side=side) for side in (128, 64))
    assert not are_images_copied(large, ADA)
    assert are_images_copied(small, ADA)
    assert are_images_copied(large, AMPERE)


def test_gradients_of_weights_of_32_channels_copy_nothing() -> None:
    assert not are_images_copied(call(Pass.WEIGHT_GRADIENT, 64, 32), AMPERE)
    assert are_images_copied(call(Pass.WEIGHT_GRADIENT, 64, 32), ADA)
    assert are_images_copied(call(Pass.WEIGHT_GRADIENT, 64, 16), AMPERE)


@pytest.mark.parametrize(
    ("generation", "of_passes"), [(A100, (64, 0, 32)), (AMPERE, (128, 256, 128)), (ADA, (256, 512, 512))]
)
def test_for_single_pixels_in_steps_the_narrower_side_counts(
    generation: Generation, of_passes: tuple[int, int, int]
) -> None:
    for kernel, channels in zip(Pass, of_passes, strict=True):
        at_most, wider = (call(kernel, 1024, side, window=1, stride=2) for side in (channels, channels + 1))
        assert are_images_copied(wider, generation)
        assert channels == 0 or not are_images_copied(at_most, generation)
