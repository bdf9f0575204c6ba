"""Temporaries of CUDA's Fourier transforms (``cuda/SpectralOps.cpp``), without cuFFT's work area."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from torch._prims_common import make_contiguous_strides_for

from memplan.estimators.lowering.temporary_bytes import TemporaryBytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

_MOST_DIMS = 3  # of one cuFFT call
_HALF_BYTES = 2


def from_real(args: tuple[Any, ...], result: Any) -> TemporaryBytes:
    """Real to complex: with several steps, a second tensor of the result's size."""
    source, dims = args[:2]
    if _is_one_step(dims):
        return TemporaryBytes(after_results=(_copied_bytes(source, dims, source.stride()),))
    return TemporaryBytes(after_results=(result.nbytes,))


def to_real(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Complex to real: a copy of the input, which cuFFT may overwrite."""
    source, dims = args[:2]
    if not _is_one_step(dims):
        return TemporaryBytes(after_results=(source.nbytes + _complex_bytes(source, dims[:-1]),))
    strides = make_contiguous_strides_for(source.shape)
    return TemporaryBytes(after_results=(source.nbytes + _copied_bytes(source, dims, strides),))


def complex_numbers(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Complex to complex: three dimensions at a time; without a dimension, a mere copy."""
    return TemporaryBytes(after_results=(_complex_bytes(*args[:2]),))


def _complex_bytes(source: torch.Tensor, dims: Sequence[int]) -> int:
    if not dims:
        return 0
    return source.nbytes if len(dims) > _MOST_DIMS else _copied_bytes(source, dims, source.stride())


def _is_one_step(dims: Sequence[int]) -> bool:
    """``use_optimized_cufft_path``."""
    return len(dims) <= _MOST_DIMS and tuple(dims[:2]) != (0, 1)


def _copied_bytes(source: torch.Tensor, dims: Sequence[int], strides: Sequence[int]) -> int:
    """Return the bytes of a copy if batch dimensions cannot be merged or cuFFT cannot read the layout, else 0."""
    shape = source.shape
    batch = sorted((each for each in range(source.dim()) if each not in dims), key=lambda each: -strides[each])
    wide = [each for each in batch if shape[each] != 1]
    is_one = all(strides[a] == strides[b] * shape[b] for a, b in itertools.pairwise(wide))
    is_read = is_one and _is_embedded(shape, strides, [*wide[-1:], *dims], has_batch=bool(wide))
    is_half = source.element_size() == _HALF_BYTES * (2 if source.is_complex() else 1)
    return 0 if is_read and not (is_half and strides[dims[-1]] != 1) else source.nbytes


def _is_embedded(shape: Sequence[int], strides: Sequence[int], dims: list[int], *, has_batch: bool) -> bool:
    """``as_cufft_embed``: each signal dimension is a multiple of the next, and the batch is not broadcast."""
    if has_batch and strides[dims[0]] == 0:
        return False
    step = strides[dims[-1]]
    if step <= 0:
        return False
    for each in reversed(dims[1 if has_batch else 0 : -1]):
        if shape[each] == 1:
            continue
        if strides[each] <= 0 or strides[each] % step:
            return False
        step = strides[each]
    return True
