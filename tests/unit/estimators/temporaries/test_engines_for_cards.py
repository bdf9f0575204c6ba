"""Engines that cuDNN names only where there is a card."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolutions import Convolution, Pass
from memplan.estimators.temporaries.engines_for_cards import depthwise_bytes

A100, AMPERE, TURING, HOPPER = Generation.A100, Generation.AMPERE, Generation.TURING, Generation.HOPPER
IMAGE = (10, 64, 32, 32)
DEPTHWISE = Convolution(
    kernel=Pass.WEIGHT_GRADIENT,
    input_shape=IMAGE,
    weight_shape=(64, 1, 3, 3),
    output_shape=IMAGE,
    dtype="bfloat16",
    channels_last=True,
    stride=(1, 1),
    padding=(1, 1),
    dilation=(1, 1),
)


def test_depthwise_weight_gradients_are_eight_sums_of_every_image() -> None:
    assert depthwise_bytes(DEPTHWISE, A100) == 8 * 10 * 64 * 9 * 4


def test_their_channels_come_in_multiples_of_32() -> None:
    narrow = replace(DEPTHWISE, input_shape=(10, 33, 32, 32), weight_shape=(33, 1, 3, 3))
    assert depthwise_bytes(narrow, A100) == depthwise_bytes(DEPTHWISE, A100)


@pytest.mark.parametrize(
    ("dtype", "side", "generation", "is_summed"),
    [
        ("bfloat16", 7, A100, True),
        ("bfloat16", 9, A100, False),
        ("bfloat16", 7, TURING, False),
        ("float16", 7, TURING, True),
        ("float16", 5, A100, False),
        ("float32", 7, A100, False),
    ],
)
def test_type_window_and_card_decide(dtype: str, side: int, generation: Generation, is_summed: bool) -> None:
    call = replace(DEPTHWISE, dtype=dtype, weight_shape=(64, 1, side, side))
    assert (depthwise_bytes(call, generation) is not None) is is_summed


@pytest.mark.parametrize(
    "other",
    [
        {"channels_last": False},
        {"weight_shape": (64, 2, 3, 3)},
        {"weight_shape": (128, 1, 3, 3)},
        {"weight_shape": (64, 1, 3, 1)},
        {"dilation": (2, 2)},
    ],
)
def test_other_convolutions_have_other_engines(other: dict[str, object]) -> None:
    assert depthwise_bytes(replace(DEPTHWISE, **other), A100) is None


@pytest.mark.parametrize("kernel", [Pass.FORWARD, Pass.INPUT_GRADIENT])
@pytest.mark.parametrize(("dtype", "side"), [("bfloat16", 3), ("bfloat16", 7), ("float16", 3), ("float16", 7)])
def test_other_passes_take_nothing_where_the_card_computes_in_the_type(kernel: Pass, dtype: str, side: int) -> None:
    call = replace(DEPTHWISE, kernel=kernel, dtype=dtype, weight_shape=(64, 1, side, side))
    assert depthwise_bytes(call, A100) == 0
    assert depthwise_bytes(call, TURING) == (0 if dtype == "float16" else None)
    assert depthwise_bytes(replace(call, dtype="float32"), A100) is None
    assert depthwise_bytes(replace(call, weight_shape=(64, 1, 9, 9)), A100) is None


@pytest.mark.parametrize("generation", [TURING, A100, HOPPER])
@pytest.mark.parametrize("side", [3, 5])
def test_in_the_images_own_layout_only_gradients_of_the_weight_may_take_something(
    side: int, generation: Generation
) -> None:
    call = replace(DEPTHWISE, dtype="float16", channels_last=False, weight_shape=(64, 1, side, side), stride=(2, 2))
    assert [depthwise_bytes(replace(call, kernel=each), generation) for each in Pass] == [0, 0, None]


@pytest.mark.parametrize(("side", "pixels"), [(3, 56), (5, 14)])
def test_and_these_only_for_large_images(side: int, pixels: int) -> None:
    call = replace(DEPTHWISE, dtype="float16", channels_last=False, weight_shape=(64, 1, side, side))
    small, large = (replace(call, input_shape=(10, 64, each, each)) for each in (pixels, pixels + 1))
    assert depthwise_bytes(small, A100) == depthwise_bytes(large, TURING) == depthwise_bytes(large, AMPERE) == 0
    assert depthwise_bytes(large, A100) is None
