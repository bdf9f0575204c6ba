"""Depthwise convolutions of float16 that PyTorch gives to cuDNN."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.lowering.cudnn_depthwise import runs_depthwise_on_cudnn


def runs(*shape: int, window: int = 3, stride: int = 1, dilation: int = 1, dtype: torch.dtype = torch.float16) -> bool:
    image = torch.empty(shape, dtype=dtype, device="meta")
    weight = torch.empty(shape[1], 1, *(window,) * (len(shape) - 2), dtype=dtype, device="meta")
    return runs_depthwise_on_cudnn(image, weight, [stride], [dilation])


def test_windows_of_up_to_five_pixels_that_move_by_one_run_on_cudnn() -> None:
    assert [runs(8, 64, 14, 14, window=side) for side in (1, 2, 3, 5, 7)] == [True, False, True, True, False]
    assert not runs(8, 64, 14, 6)
    assert not runs(8, 31, 14, 14)
    assert not runs(8, 64, 14, 14, dilation=2)
    assert not runs(8, 64, 14, 14, dtype=torch.bfloat16)
    assert not runs(8, 64, 14, 14, dtype=torch.float32)
    assert not runs(8, 64, 7, 14, 14)


@pytest.mark.parametrize(
    ("samples", "channels", "width", "window", "on_cudnn"),
    [
        (8, 512, 7, 3, True),
        (8, 511, 27, 3, False),
        (8, 256, 28, 5, True),
        (8, 255, 28, 5, False),
        (16, 128, 7, 1, True),
        (17, 128, 7, 1, False),
        (1, 32, 112, 3, True),
        (1, 32, 29, 1, False),
    ],
)
def test_windows_that_move_by_two_run_on_cudnn_where_there_is_work_enough(
    samples: int, channels: int, width: int, window: int, on_cudnn: bool
) -> None:
    assert runs(samples, channels, width, width, window=window, stride=2) is on_cudnn
    assert not runs(samples, channels, width, width, window=window, stride=3)


def test_lines_run_on_cudnn_if_their_windows_move_by_one() -> None:
    assert runs(8, 64, 100, window=31)
    assert runs(8, 64, 1, 100, window=31)
    assert not runs(8, 64, 100, window=31, stride=2)
    assert runs(8, 128, 7, window=1, stride=2)
