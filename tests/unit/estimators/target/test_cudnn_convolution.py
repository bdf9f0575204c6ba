"""What of cuDNN's workspaces follows from shapes and layouts alone."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.target.cudnn_convolution import convolution_rules
from memplan.estimators.target.hidden_bytes import NOTHING_HIDDEN, HiddenBytes
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
) -> HiddenBytes:
    rule = convolution_rules(capability)["aten.convolution"]
    return rule((pixels, kernel, None, [stride], [0], [1], False, [0], groups), image(dtype=pixels.dtype))


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
