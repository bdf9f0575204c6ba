"""Convolutions of images of 1 MiB, and what all of their passes take."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.estimators.temporaries.convolution_workspaces import workspace_bytes
from memplan.estimators.temporaries.convolutions import Convolution, Pass

if TYPE_CHECKING:
    from memplan.estimators.temporaries.card_generations import Generation

IMAGE = (1, 64, 64, 64)  # 1 MiB in single precision


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


def square_call(
    shape: tuple[int, int, int, int, int, int], kernel: Pass, dtype: str = "float32", *, channels_last: bool = False
) -> Convolution:
    """A padded convolution by samples, channels, side, outputs, window and stride."""
    samples, inputs, side, outputs, window, stride = shape
    padding = window // 2
    made = (side + 2 * padding - window) // stride + 1
    of_window = call(
        (outputs, inputs, window, window),
        kernel,
        dtype,
        input_shape=(samples, inputs, side, side),
        output_shape=(samples, outputs, made, made),
        channels_last=channels_last,
        stride=stride,
    )
    return replace(of_window, padding=(padding, padding))


def of_all_passes(convolution: Convolution, generation: Generation) -> tuple[int, ...]:
    return tuple(workspace_bytes(replace(convolution, kernel=each), generation) for each in Pass)
