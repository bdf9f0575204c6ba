"""What batch norm sums through on a card, where its images do not lie contiguous."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from memplan.estimators.lowering.batch_norm_temporaries import batch_norm_rules
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes
from memplan.units import MIB
from tests import tensors
from tests.making import sizes
from tests.tensors import in_channels_last

if TYPE_CHECKING:
    import pytest

RULES = batch_norm_rules((8, 0), 108)


meta = partial(tensors.meta, dtype=torch.bfloat16)


def forward(image: torch.Tensor, *, training: bool = True) -> TemporaryBytes:
    weight = meta(image.shape[1], dtype=torch.float32)
    return RULES["aten.native_batch_norm"]((image, weight, weight, None, None, training, 0.1, 1e-5), image)


def backward(gradient: torch.Tensor, image: torch.Tensor, *, training: bool = True) -> TemporaryBytes:
    weight = meta(image.shape[1], dtype=torch.float32)
    args = (gradient, image, weight, None, None, None, None, training, 1e-5, [True, True, True])
    return RULES["aten.native_batch_norm_backward"](args, image)


def test_images_of_bfloat16_in_channels_last_are_summed_in_parts() -> None:
    image = in_channels_last(meta(8, 64, 32, 32))
    parts = 8 * 32 * 32 // 256  # 32, of 256 values each
    assert sizes(forward(image).after_results) == (4 * 64 * parts * 4,)
    found = backward(image, image)
    assert sizes(found.before_results) == (2 * 64 * parts * 4,)
    assert sizes(found.around_results) == (64 * 4, 64 * 4)


def test_cudnn_normalises_gradients_in_the_layout_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    image = meta(8, 64, 32, 32, dtype=torch.float32)  # 2 MiB
    of_sum = image[:1, :1, :1, :1].expand(8, 64, 32, 32)
    assert backward(of_sum, image).throughout == backward(image, in_channels_last(image)).throughout == (2 * MIB,)
    assert backward(image, image) == backward(of_sum, image, training=False) == NO_TEMPORARIES
    assert backward(of_sum.bfloat16(), image.bfloat16()) == NO_TEMPORARIES  # by ATen
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    assert backward(of_sum, image) == NO_TEMPORARIES


def test_other_batch_norms_sum_in_place_or_on_cudnn() -> None:
    image = meta(8, 64, 32, 32)
    assert forward(image) == backward(image, image) == NO_TEMPORARIES
    assert forward(in_channels_last(image).half()) == NO_TEMPORARIES
    assert forward(in_channels_last(image), training=False) == NO_TEMPORARIES
    assert backward(image, in_channels_last(image)) == TemporaryBytes(around_results=(64 * 4, 64 * 4))


def test_sequences_of_bfloat16_with_their_channels_last_are_read_in_single_precision() -> None:
    steps_last = meta(8, 64, 16).transpose(1, 2)  # 16 channels, 64 steps
    assert sizes(forward(steps_last).after_results) == (8 * 16 * 64 * 4,)


def test_means_and_variances_of_many_steps_are_put_together_through_memory() -> None:
    steps_last = meta(32, 1024, 64).transpose(1, 2)  # 32768 values for each of 64 channels
    copied, parts = sizes(forward(steps_last).after_results)
    assert copied == 32 * 1024 * 64 * 4
    of_each = 4 * 4  # mean, squares and two counts
    width, outputs_per_thread = 16, 4  # 64 channels
    shares = 32768 // 8 // 16  # 8 rows of threads, of at least 16 values
    assert parts == of_each * 64 * shares * width * outputs_per_thread
    assert forward(steps_last.half()) == NO_TEMPORARIES  # by cuDNN, as the weights are in single precision
    without_weights = (steps_last.half(), None, None, None, None, True, 0.1, 1e-5)
    assert sizes(RULES["aten.native_batch_norm"](without_weights, steps_last).after_results) == (parts,)
