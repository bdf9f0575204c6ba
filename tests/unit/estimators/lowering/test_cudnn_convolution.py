"""What of cuDNN's workspaces follows from shapes and layouts alone."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.lowering.cudnn_convolution import convolution_rules
from memplan.estimators.lowering.hidden_bytes import NOTHING_HIDDEN, HiddenBytes
from memplan.units import KIB, MIB

AMPERE, VOLTA = (8, 0), (7, 0)


def image(channels: int = 64, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """1 MiB of 64 channels in single precision."""
    return torch.empty(1, channels, 64, 64, dtype=dtype, device="meta")


def weight(groups: int = 1, dtype: torch.dtype = torch.float32, window: int = 8) -> torch.Tensor:
    """1 MiB, for 64 channels in and out in single precision, by windows of 8 x 8."""
    return torch.empty(64, 64 // groups, window, window, dtype=dtype, device="meta")


def forward(
    pixels: torch.Tensor,
    kernel: torch.Tensor,
    *,
    groups: int = 1,
    stride: int = 1,
    capability: tuple[int, int] = AMPERE,
    result: torch.Tensor | None = None,
) -> HiddenBytes:
    rule = convolution_rules(capability)["aten.convolution"]
    made = image(dtype=pixels.dtype) if result is None else result
    return rule((pixels, kernel, None, [stride], [0], [1], False, [0], groups), made)


def weight_of_three(inputs: int, outputs: int) -> torch.Tensor:
    return torch.empty(outputs, inputs, 3, 3, device="meta")


def test_input_weight_and_output_are_converted_for_tensor_cores() -> None:
    assert forward(image(), weight()) == HiddenBytes(beside=3 * MIB)


def test_each_slope_has_a_workspace_of_its_own() -> None:
    rule = convolution_rules(AMPERE)["aten.convolution_backward"]
    args = (image(), image(), weight(), None, [1], [0], [1], False, [0], 1)
    assert rule((*args, [True, True, False]), None) == HiddenBytes(between=3 * MIB, beside=3 * MIB)
    assert rule((*args, [False, True, False]), None) == HiddenBytes(beside=3 * MIB)


@pytest.mark.parametrize(
    "found",
    [
        forward(image().contiguous(memory_format=torch.channels_last), weight()),
        forward(image(), weight(), capability=VOLTA),
        forward(image(), weight(groups=4), groups=4),
        forward(image(channels=3), weight()),
        forward(image(dtype=torch.float64), weight(dtype=torch.float64)),
        forward(image(), weight(window=1)),
    ],
    ids=["channels-last", "no TF32 on Volta", "groups", "a photograph", "double precision", "a matrix product"],
)
def test_what_runs_without_conversion_takes_nothing_that_can_be_told(found: HiddenBytes) -> None:
    assert found is NOTHING_HIDDEN


def test_single_pixels_taken_at_a_distance_are_converted() -> None:
    assert forward(image(), weight(window=1), stride=2) == HiddenBytes(beside=2 * MIB + 16 * KIB)


def test_half_precision_is_converted_from_volta_on() -> None:
    found = forward(image(dtype=torch.float16), weight(dtype=torch.float16), capability=VOLTA)
    assert found == HiddenBytes(beside=3 * MIB // 2)


def backward(pixels: torch.Tensor, kernel: torch.Tensor, slope: torch.Tensor, wanted: list[bool]) -> HiddenBytes:
    rule = convolution_rules(VOLTA)["aten.convolution_backward"]
    return rule((slope, pixels, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, wanted), None)


def test_volta_transforms_image_weight_and_result_tile_by_tile() -> None:
    kernel = weight_of_three(128, 128)
    found = forward(image(128), kernel, capability=VOLTA, result=image(128))
    assert found == HiddenBytes(beside=36 * 4 * (128 * 128 + 16 * 16 * (128 + 128)))  # 16 tiles of 4 pixels a side
    assert backward(image(128), kernel, image(128), [True, True, False]) == HiddenBytes(between=found.beside)
    assert backward(image(128), kernel, image(128), [False, True, False]) == NOTHING_HIDDEN


@pytest.mark.parametrize(
    ("side", "inputs", "outputs", "listed_bytes"),
    [(5, 256, 486, 31592448), (19, 512, 486, 150801408), (38, 256, 324, 279207936), (38, 128, 256, 181665792)],
)
def test_the_transforms_take_what_cudnn_itself_answers(side: int, inputs: int, outputs: int, listed_bytes: int) -> None:
    """github.com/Slimakanzer/cudnn-benchmark, out_example.txt: 32 images, windows of 3 x 3, one pixel of padding."""
    pixels, result = (torch.empty(32, channels, side, side, device="meta") for channels in (inputs, outputs))
    kernel = weight_of_three(inputs, outputs)
    found = forward(pixels, kernel, capability=VOLTA, result=result)
    assert found == HiddenBytes(beside=listed_bytes)


def test_the_slope_of_the_image_counts_the_images_tiles() -> None:
    """The same list: 5 x 5 pixels without padding, two tiles a side for the slope, one for the result of 3 x 3."""
    pixels, slope = torch.empty(32, 128, 5, 5, device="meta"), torch.empty(32, 256, 3, 3, device="meta")
    assert backward(pixels, weight_of_three(128, 256), slope, [True, True, False]).between == 11796480


@pytest.mark.parametrize(
    "found",
    [
        forward(image(128), torch.empty(128, 128, 5, 5, device="meta"), capability=VOLTA),
        forward(image(128), weight_of_three(128, 128), capability=VOLTA, stride=2),
        forward(image(128), weight_of_three(128, 128), capability=(6, 0)),
        forward(image(64), weight_of_three(64, 128), capability=VOLTA),
    ],
    ids=["larger windows", "a stride", "Pascal", "few channels"],
)
def test_other_convolutions_without_tensor_cores_take_nothing_that_can_be_told(found: HiddenBytes) -> None:
    assert found == NOTHING_HIDDEN
