"""Copies that Fourier transforms make on a card."""

from __future__ import annotations

import pytest
import torch

from memplan.units import MIB
from tests.tensors import cuda_temporary_bytes, meta


@pytest.mark.parametrize(
    ("source", "dims", "copied_bytes"),
    [
        (meta(4, 256, 256), [2], 0),
        (meta(4, 256, 256), [1, 2], 0),
        (meta(4, 256, 256), [1], MIB),  # batch in two parts
        (meta(4, 256, 256).transpose(1, 2), [1, 2], MIB),  # rows and columns exchanged
        (meta(256, 4, 256).transpose(0, 1), [1, 2], 0),  # samples beside each other: rows are multiples of columns
        (meta(4, 256, 1).expand(4, 256, 256), [2], MIB),
        (meta(1024, 256)[:, ::2], [1], 0),
        (meta(2048, 256, dtype=torch.float16)[:, ::2], [1], MIB // 2),
    ],
)
def test_what_cufft_cannot_read_is_copied(source: torch.Tensor, dims: list[int], copied_bytes: int) -> None:
    assert cuda_temporary_bytes("aten._fft_r2c", (source, dims, 0, True), source).after_results == (copied_bytes,)


def test_complex_numbers_are_copied_before_they_become_real() -> None:
    spectrum = meta(4, 256, 128, dtype=torch.complex64)
    assert cuda_temporary_bytes("aten._fft_c2r", (spectrum, [2], 0, 254), meta(4, 256, 254)).after_results == (MIB,)
    assert cuda_temporary_bytes("aten._fft_c2c", (spectrum, [2], 0, True), spectrum).after_results == (0,)


def test_several_steps_go_back_and_forth_between_two_tensors() -> None:
    source, spectrum = meta(2, 2, 256, 256), meta(2, 2, 256, 129, dtype=torch.complex64)
    assert cuda_temporary_bytes("aten._fft_r2c", (source, [0, 1, 2, 3], 0, True), spectrum).after_results == (
        spectrum.nbytes,
    )
    assert cuda_temporary_bytes("aten._fft_c2c", (spectrum, [0, 1, 2, 3], 0, True), spectrum).after_results == (
        spectrum.nbytes,
    )
    steps = cuda_temporary_bytes("aten._fft_c2r", (spectrum, [0, 1, 2, 3], 0, 256), source)
    assert steps.after_results == (spectrum.nbytes,)
