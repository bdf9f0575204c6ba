"""Temporaries of CUDA kernels: allocated inside, freed before they return, seen by no dispatch mode.

Sources are the CUDA kernels of ATen (``aten/src/ATen/native``) unless a rule says otherwise. Bytes are as requested;
the allocator rounds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from memplan.estimators.lowering import fourier_temporaries, torchvision_temporaries
from memplan.estimators.lowering.composite_temporaries import INDEXED_WRITES, composite_rules, sorts_places
from memplan.estimators.lowering.contiguous_copies import copies
from memplan.estimators.lowering.cuda_copies import copying_rules
from memplan.estimators.lowering.library_workspaces import multiplies_elements
from memplan.estimators.lowering.temporary_bytes import INT64_BYTES, NO_TEMPORARIES, TemporaryBytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.estimators.lowering.temporary_bytes import Rule


def _index(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Int64 copies of int32 indices, and copies of broadcast indices with different strides (``AdvancedIndex``)."""
    indices = [each for each in args[1] if each is not None and each.dtype not in (torch.bool, torch.uint8)]
    if not indices:
        return NO_TEMPORARIES
    shape = torch.broadcast_shapes(*(each.shape for each in indices))  # type: ignore[no-untyped-call]  # untyped in torch
    narrow = tuple(each.numel() * INT64_BYTES for each in indices if each.dtype is torch.int32)
    whole = [each for each in indices if each.shape == shape and each.is_contiguous()]
    alike = len({each.stride() for each in indices}) == 1 and all(each.shape == shape for each in indices)
    copied = 0 if alike else len(indices) - len(whole)
    return TemporaryBytes(around_results=(*narrow, *[shape.numel() * INT64_BYTES] * copied))


def _index_put(args: tuple[Any, ...], result: Any) -> TemporaryBytes:
    return NO_TEMPORARIES if sorts_places(args) else _index(args, result)


def _masked_scatter(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """The prefix sum of the mask, which says where each element is read (``IndexKernel.cpp``, ``maskPrefixSum``).

    A mask that is broadcast is written out before.
    """
    target, mask = args[:2]
    shape = torch.broadcast_shapes(target.shape, mask.shape)  # type: ignore[no-untyped-call]  # untyped in torch
    elements: int = shape.numel()
    is_read_as_it_is = mask.shape == shape and mask.is_contiguous()
    written = () if is_read_as_it_is else (elements,)
    return TemporaryBytes(after_results=(elements * INT64_BYTES, *written))


def _cdist_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """The gradient of each pair before the sum (``cdist_backward_kernel_impl`` in ``DistanceKernel.cu``)."""
    grad, points, _, norm = args[:4]
    if norm == 0:
        return NO_TEMPORARIES
    return TemporaryBytes(after_results=(grad.numel() * points.shape[-1] * points.element_size(),))


def _pdist_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """The gradient of each point with respect to each other (``pdist_backward_kernel_impl``)."""
    points, norm = args[1:3]
    return NO_TEMPORARIES if norm == 0 else TemporaryBytes(after_results=((len(points) - 1) * points.nbytes,))


def _matrix_product(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Copies of operands whose strides BLAS does not accept (``Blas.cpp``, ``prepare_batch_matrix_for_cublas``)."""
    operands = [each for each in args if isinstance(each, torch.Tensor)][-2:]  # the added matrix is copied in any case
    return TemporaryBytes(after_results=tuple(each.nbytes for each in operands[::-1] if not _has_blas_strides(each)))


def _batched_product(args: tuple[Any, ...], result: Any) -> TemporaryBytes:
    return NO_TEMPORARIES if multiplies_elements(*args) else _matrix_product(args, result)


def _has_blas_strides(matrix: torch.Tensor) -> bool:
    if matrix.layout is not torch.strided:  # cuSPARSE reads it directly
        return True
    rows, columns = matrix.shape[-2:]
    row_step, column_step = matrix.stride()[-2:]
    return (column_step == 1 and row_step >= max(1, columns)) or (row_step == 1 and column_step >= max(1, rows))


def _count_nonzero(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """A mask of what is not zero, as integers (``count_nonzero_cuda`` in ``TensorAdvancedIndexing.cpp``)."""
    count = args[0].numel()
    return TemporaryBytes(after_results=(count, count * INT64_BYTES))


def _bernoulli(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Probabilities of half types in single precision (``bernoulli_kernel`` in ``DistributionBernoulli.cu``)."""
    chances: torch.Tensor = args[0]
    is_converted = not isinstance(args[-1], float) and chances.element_size() < torch.float32.itemsize
    return TemporaryBytes(after_results=(chances.numel() * torch.float32.itemsize,)) if is_converted else NO_TEMPORARIES


def _soft_margin_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """The exponential, from a negative target and its product (``soft_margin_loss_backward_out`` in ``Loss.cpp``)."""
    values: torch.Tensor = args[1]
    return TemporaryBytes(around_results=(values.nbytes, (values.nbytes, values.nbytes)))


def _scatter_mean(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """Ones that are counted, and where the count is zero (``scatter_reduce_two`` in ``TensorAdvancedIndexing.cpp``)."""
    source, reduction = args[3:5]
    if reduction != "mean":
        return NO_TEMPORARIES
    return TemporaryBytes(after_results=(source.nbytes, result.nbytes, (result.numel(),)))


def _im2col(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """The result in the image's size, before it is resized, and a contiguous image (``im2col_cuda``, ``Im2Col.cu``)."""
    image: torch.Tensor = args[0]
    in_image_size = (image.nbytes,) if result.nbytes > image.nbytes else ()
    return TemporaryBytes(around_results=(*in_image_size, *copies((image,))))


def _group_norm(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Scale and shift of each channel of each sample (``GroupNormKernelImplInternal`` in ``group_norm_kernel.cu``).

    From torch 2.15 on also a copy of an image that is neither contiguous nor channels-last.
    """
    image, weight, bias, samples, channels, positions = args[:6]
    copied = copies((image,), suggest_memory_format(image))
    if positions == 1 or (weight is None and bias is None):
        return TemporaryBytes(after_results=copied)
    each_bytes = samples * channels * max(image.element_size(), torch.float32.itemsize)
    return TemporaryBytes(after_results=(*copied, each_bytes, each_bytes))


def _group_norm_backward(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Sums of each channel, and what scales it and its group (``GroupNormBackwardKernelImplInternal``, likewise).

    From torch 2.15 on also copies of the gradient and the image in the image's layout.
    """
    image, weight, samples, channels, positions, groups = (args[1], *args[4:9])
    layout = suggest_memory_format(image)
    copied = copies(args[:2], layout)
    number_bytes = max(image.element_size(), torch.float32.itemsize)
    sums_bytes, of_group_bytes = samples * channels * number_bytes, samples * groups * number_bytes
    # A single position is scaled without such products (``GroupNorm1dBackward``).
    is_scaled = weight is not None and layout is torch.contiguous_format and positions > 1
    scales = (sums_bytes,) if is_scaled else ()
    return TemporaryBytes(after_results=(*copied, sums_bytes, sums_bytes, of_group_bytes, of_group_bytes, *scales))


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("aten.index", "aten._unsafe_index"), _index),
    **dict.fromkeys((f"aten.{name}" for name in INDEXED_WRITES), _index_put),
    **dict.fromkeys(("aten.masked_scatter", "aten.masked_scatter_"), _masked_scatter),
    "aten._cdist_backward": _cdist_backward,
    "aten._pdist_backward": _pdist_backward,
    "aten._sample_dirichlet": lambda _args, result: TemporaryBytes(after_results=(result.nbytes,)),  # draws of gamma
    **dict.fromkeys(
        (f"aten.{name}" for name in ("baddbmm", "baddbmm_", "mm", "addmm", "addmm_", "_addmm_activation")),
        _matrix_product,
    ),
    "aten.bmm": _batched_product,
    "aten.im2col": _im2col,
    "aten.count_nonzero": _count_nonzero,
    "aten.bernoulli": _bernoulli,
    "aten.soft_margin_loss_backward": _soft_margin_backward,
    **dict.fromkeys(
        (f"aten.{name}" for name in ("scatter_reduce", "scatter_reduce_", "index_reduce", "index_reduce_")),
        _scatter_mean,
    ),
    "aten.native_group_norm": _group_norm,
    "aten.native_group_norm_backward": _group_norm_backward,
    "aten._fft_r2c": fourier_temporaries.from_real,
    "aten._fft_c2r": fourier_temporaries.to_real,
    "aten._fft_c2c": fourier_temporaries.complex_numbers,
    "torchvision.nms": torchvision_temporaries.non_maximum_suppression,
    "torchvision.deform_conv2d": torchvision_temporaries.deformable_convolution,
    "torchvision._deform_conv2d_backward": torchvision_temporaries.deformable_convolution_backward,
}
# Tables of rules that are alike for all cards, by operator name without overload.
CUDA_RULES: tuple[Mapping[str, Rule], ...] = (composite_rules(on_cuda=True), copying_rules(), _RULES)
