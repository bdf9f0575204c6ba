"""Up to how many channels kernels for single precision do without copies, on cards of each generation."""

from __future__ import annotations

import pytest

from memplan.estimators.temporaries.convolutions import Convolution, Pass
from memplan.estimators.temporaries.single_precision_copies import are_images_copied, is_written_in_place

A100, AMPERE, ADA, HOPPER, BLACKWELL_OF_DATA_CENTRES, BLACKWELL = (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)
GENERATIONS = (A100, AMPERE, ADA, HOPPER, BLACKWELL_OF_DATA_CENTRES, BLACKWELL)


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
@pytest.mark.parametrize("capability", GENERATIONS)
def test_wide_convolutions_copy_their_images(kernel: Pass, capability: tuple[int, int]) -> None:
    assert are_images_copied(call(kernel, 256, 256), capability)


@pytest.mark.parametrize(("capability", "channels"), [(A100, 0), (AMPERE, 32), (ADA, 32), (HOPPER, 0), (BLACKWELL, 0)])
def test_forward_passes_to_few_channels_copy_nothing(capability: tuple[int, int], channels: int) -> None:
    narrow, wider = (call(Pass.FORWARD, 64, outputs) for outputs in (max(channels, 16), channels + 1))
    assert are_images_copied(narrow, capability) is (channels == 0)
    assert are_images_copied(wider, capability)


def test_with_steps_it_is_the_channels_read_that_count() -> None:
    assert not are_images_copied(call(Pass.FORWARD, 32, 128, stride=2), AMPERE)
    assert not are_images_copied(call(Pass.FORWARD, 64, 128, stride=2), ADA)
    assert are_images_copied(call(Pass.FORWARD, 64, 128, stride=2), AMPERE)


@pytest.mark.parametrize(
    ("capability", "channels"), [(A100, 17), (AMPERE, 33), (ADA, 33), (BLACKWELL_OF_DATA_CENTRES, 65), (BLACKWELL, 65)]
)
def test_results_of_enough_channels_are_written_in_place(capability: tuple[int, int], channels: int) -> None:
    assert is_written_in_place(call(Pass.FORWARD, 64, channels), capability)
    assert not is_written_in_place(call(Pass.INPUT_GRADIENT, channels, 64), capability)


def test_on_hopper_no_result_is_written_in_place() -> None:
    assert not is_written_in_place(call(Pass.FORWARD, 64, 2048), HOPPER)


def test_sums_over_many_channels_are_not_written_in_place() -> None:
    assert not is_written_in_place(call(Pass.FORWARD, 1024, 256), A100)
    assert is_written_in_place(call(Pass.FORWARD, 1024, 512), A100)
    assert is_written_in_place(call(Pass.FORWARD, 1024, 256, window=1, stride=2), A100)


@pytest.mark.parametrize("capability", [A100, AMPERE, ADA])
def test_gradients_of_few_input_channels_copy_nothing_unless_in_steps(capability: tuple[int, int]) -> None:
    assert not are_images_copied(call(Pass.INPUT_GRADIENT, 32, 128), capability)
    assert are_images_copied(call(Pass.INPUT_GRADIENT, 33, 128), capability)
    assert are_images_copied(call(Pass.INPUT_GRADIENT, 32, 128, stride=2), capability)


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
    ("capability", "of_passes"), [(A100, (64, 0, 32)), (AMPERE, (128, 256, 128)), (ADA, (256, 512, 512))]
)
def test_for_single_pixels_in_steps_the_narrower_side_counts(
    capability: tuple[int, int], of_passes: tuple[int, int, int]
) -> None:
    for kernel, channels in zip(Pass, of_passes, strict=True):
        at_most, wider = (call(kernel, 1024, side, window=1, stride=2) for side in (channels, channels + 1))
        assert are_images_copied(wider, capability)
        assert channels == 0 or not are_images_copied(at_most, capability)


def test_a_card_between_two_generations_is_taken_for_the_older() -> None:
    assert is_written_in_place(call(Pass.FORWARD, 64, 128), (10, 3))
    assert not is_written_in_place(call(Pass.FORWARD, 64, 64), (10, 3))
