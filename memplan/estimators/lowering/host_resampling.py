"""Temporaries of CPU kernels that pool, pad and resample, found by reading the CPU allocator's events (torch 2.13).

The sources in ``aten/src/ATen/native`` say so by ``contiguous``: ``cpu/MaxPoolKernel.cpp``, ``cpu/AvgPoolKernel.cpp``,
``cpu/AdaptiveAvgPoolKernel.cpp``, ``AdaptiveMaxPooling2d.cpp``, ``AdaptiveAveragePooling3d.cpp``,
``cpu/PaddingKernel.cpp``, ``cpu/UpSampleMoreKernel.cpp``, ``cpu/UpSampleKernel.cpp``, ``GridSampler.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from memplan.estimators.lowering.contiguous_copies import copies
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes

if TYPE_CHECKING:
    from memplan.estimators.lowering.temporary_bytes import Rule

_IN_LAYOUT_OF_GRADIENT = (
    "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "reflection_pad2d",
    "reflection_pad3d", "replication_pad2d", "replication_pad3d", "upsample_nearest3d", "_upsample_nearest_exact3d",
)  # fmt: skip
_OF_CONTIGUOUS_GRADIENT = (
    "avg_pool3d", "_adaptive_avg_pool3d", "adaptive_max_pool3d", "reflection_pad1d", "replication_pad1d",
    "upsample_linear1d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "grid_sampler_2d",
)  # fmt: skip
_SMALL_SIDES = 128  # pixels of height and width together


def resampling_rules() -> dict[str, Rule]:
    """Return the rules by operator name without overload."""
    plain = ("upsample_bilinear2d", "upsample_nearest2d", "_upsample_nearest_exact2d")
    smooth = ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
    return {
        **dict.fromkeys((f"aten.{name}" for name in plain), _interpolation),
        **dict.fromkeys((f"aten.{name}" for name in smooth), _smooth_interpolation),
        **dict.fromkeys((f"aten.{name}_backward" for name in _IN_LAYOUT_OF_GRADIENT), _in_layout_of_gradient),
        **dict.fromkeys((f"aten.{name}_backward" for name in _OF_CONTIGUOUS_GRADIENT), _of_contiguous_gradient),
        "aten.adaptive_max_pool2d_backward": _in_layout_of_image,
    }


def _interpolation(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """Both images channels-last, where the result is small (``_use_vectorized_kernel_cond_2d``, UpSampleKernel.cpp)."""
    image: torch.Tensor = args[0]
    if sum(result.shape[2:]) > _SMALL_SIDES:
        return NO_TEMPORARIES
    return TemporaryBytes(after_results=(sum(copies((image, result), torch.channels_last)),))


def _smooth_interpolation(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """The image at its new width, before its height changes (``separable_upsample_generic_Nd_kernel_impl``)."""
    image: torch.Tensor = args[0]
    if image.shape[2] == result.shape[2] or image.shape[3] == result.shape[3]:
        return NO_TEMPORARIES
    return TemporaryBytes(after_results=(result.nbytes // result.shape[2] * image.shape[2],))


def _in_layout_of_gradient(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """The image's gradient as the result's gradient lies, and so the positions of the largest, if they are given."""
    gradient, *others = args
    positions = [each for each in others if isinstance(each, torch.Tensor) and not each.is_floating_point()]
    return TemporaryBytes(after_results=copies((result, *positions), suggest_memory_format(gradient)))


def _of_contiguous_gradient(args: tuple[Any, ...], result: Any) -> TemporaryBytes:
    """The result's gradient, and the image's."""
    of_image = result if isinstance(result, torch.Tensor) else result[0]
    return TemporaryBytes(after_results=copies((args[0], of_image)))


def _in_layout_of_image(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    gradient, image = args[:2]
    return TemporaryBytes(after_results=copies((gradient,), suggest_memory_format(image)))
