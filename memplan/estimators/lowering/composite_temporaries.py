"""Temporaries of kernels that are composed of smaller operators, on any device.

Sources are in ``aten/src/ATen/native`` of torch 2.13; each rule names its own.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.fake_tensors.fake_results import NO_REDUCTION
from memplan.estimators.fake_tensors.known_values import known_true_count
from memplan.estimators.lowering.determinism import prefers_deterministic
from memplan.estimators.lowering.temporary_bytes import INT64_BYTES, NO_TEMPORARIES, TemporaryBytes
from memplan.training.half_precision import HALF_TYPES

if TYPE_CHECKING:
    from memplan.estimators.lowering.temporary_bytes import Rule

_INT32_BYTES = 4
_GRAIN_ELEMENTS = 1 << 15  # ``at::internal::GRAIN_SIZE``: fewer run on one thread
INDEXED_WRITES = ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")


def composite_rules(*, on_cuda: bool) -> dict[str, Rule]:
    """Return the rules by operator name without overload."""
    reduction = partial(_reduction, on_cuda=on_cuda)
    return {
        **dict.fromkeys(("aten.sum", "aten.nansum", "aten.prod", "aten.linalg_vector_norm"), reduction),
        "aten.mean": reduction if on_cuda else _mean,
        **dict.fromkeys(("aten.cumsum", "aten.cumsum_", "aten.cumprod", "aten.cumprod_"), _scan),
        "aten.logsumexp": _logsumexp,
        "aten._safe_softmax": _safe_softmax,
        "aten.isinf": _isinf,
        # the mask is allocated before the result (``native_dropout_cpu`` in ``Dropout.cpp``, ``cuda/Dropout.cu``)
        "aten.native_dropout": lambda _args, _result: TemporaryBytes(second_first=True),
        "aten.roll": partial(_roll, on_cuda=on_cuda),
        "aten.mse_loss": _reduced_loss,
        "aten.smooth_l1_loss": _reduced_loss,
        "aten.huber_loss": _reduced_loss,
        "aten.binary_cross_entropy_with_logits": _entropy_of_logits,
        "aten.index": _index,
        "aten._unsafe_index": _index,
        **dict.fromkeys((f"aten.{name}" for name in INDEXED_WRITES), _index_put),
        "aten.masked_select": partial(_masked_select, on_cuda=on_cuda),
        "aten.masked_scatter_backward": partial(_masked_scatter_backward, on_cuda=on_cuda),
        "aten.dist": _dist,
        "aten._euclidean_dist": _euclidean_dist,
        "aten._trilinear": _trilinear,
        "aten.affine_grid_generator": _affine_grid,
        "aten.linalg_matrix_exp": _matrix_exponential,
        **dict.fromkeys(("aten.linalg_inv_ex", "aten.linalg_lu"), _factored_matrix),
        "aten._linalg_svd": _read_matrix,
        "aten.cholesky_solve": lambda args, result: _read_matrix(args[1:], result),
    }


def selected_positions(source: torch.Tensor, indices: list[torch.Tensor | None], selected: torch.Tensor) -> int:
    """Return how many positions a list of indices selects.

    Args:
        source: the indexed tensor.
        indices: an index per dimension, or a mask over some; None for a whole dimension.
        selected: the elements read or written; an upper bound for masks with unknown values.
    """
    masks = _masks(indices)
    if not masks:
        return max((each.numel() for each in indices if each is not None), default=0)
    known = known_true_count(masks[0])
    if known is not None:
        return known
    of_each = max(source.numel() // max(masks[0].numel(), 1), 1)
    return min(masks[0].numel(), max(selected.numel() // of_each, 1))


def sorts_places(args: tuple[Any, ...]) -> bool:
    """Whether a write by indices sorts them on a card: it adds values up, or is to repeat its results.

    Args:
        args: of one of ``INDEXED_WRITES``.
    """
    accumulates = len(args) > 3 and bool(args[3])
    return accumulates or (prefers_deterministic() and args[2].numel() > 1)


def _masks(indices: list[torch.Tensor | None]) -> list[torch.Tensor]:
    return [each for each in indices if each is not None and each.dtype is torch.bool]


def _reduction(args: tuple[Any, ...], result: torch.Tensor, *, on_cuda: bool) -> TemporaryBytes:
    """A copy of the input in the dtype of the result (``make_reduction_from_out_ty`` in ``ReduceOpsUtils.h``)."""
    source: torch.Tensor = args[0]
    is_widened = on_cuda and source.dtype in HALF_TYPES and result.dtype is torch.float32
    is_read_directly = is_widened or source.is_complex()  # norms of complex numbers are real
    return NO_TEMPORARIES if is_read_directly else _converted(source, result)


def _mean(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """Half types are copied to single precision on the CPU (``mean_out`` in ``ReduceOps.cpp``)."""
    if result.dtype not in HALF_TYPES:
        return _reduction(args, result, on_cuda=False)
    return TemporaryBytes(before_results=(args[0].numel() * torch.float32.itemsize,))


def _masked_select(args: tuple[Any, ...], result: torch.Tensor, *, on_cuda: bool) -> TemporaryBytes:
    return _select_by_mask(args, result.numel(), on_cuda=on_cuda)


def _masked_scatter_backward(args: tuple[Any, ...], result: torch.Tensor, *, on_cuda: bool) -> TemporaryBytes:
    """The selected part of a gradient, before it is padded (``TensorAdvancedIndexing.cpp``)."""
    known = known_true_count(args[1])
    elements = result.numel() if known is None else min(known, result.numel())
    selecting = _select_by_mask(args, elements, on_cuda=on_cuda)
    beside = selecting.around_results + selecting.after_results
    return TemporaryBytes(before_results=(selecting.before_results, elements * result.element_size(), beside))


def _select_by_mask(args: tuple[Any, ...], elements: int, *, on_cuda: bool) -> TemporaryBytes:
    """On CUDA the selected positions (``masked_select_out_cuda_impl`` indexes by the mask), on the CPU int64 masks.

    One mask is counted; unless a single thread reads contiguous memory, another and its prefix sum follow
    (``masked_select_out_impl_cpu`` in ``TensorAdvancedIndexing.cpp``).
    """
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)  # type: ignore[no-untyped-call]  # untyped in torch
    if on_cuda:
        is_broadcast = args[1].shape != shape
        written = ((shape.numel(),),) if is_broadcast else ()
        return TemporaryBytes(around_results=(elements * len(shape) * INT64_BYTES, *written))
    mask_bytes = shape.numel() * INT64_BYTES
    on_one_thread = torch.get_num_threads() == 1 or args[0].numel() < _GRAIN_ELEMENTS
    is_serial = on_one_thread and all(each.shape == shape and each.is_contiguous() for each in args[:2])
    return TemporaryBytes(before_results=(mask_bytes,), after_results=() if is_serial else (2 * mask_bytes,))


def _converted(source: torch.Tensor, result: torch.Tensor) -> TemporaryBytes:
    if source.dtype is result.dtype:
        return NO_TEMPORARIES
    return TemporaryBytes(after_results=(source.numel() * result.element_size(),))


def _scan(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """A copy of the input in the dtype of the result (``impl_func_cum_ops`` in ``ReduceOps.cpp``)."""
    return _converted(args[0], result)


def _logsumexp(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """Maxima, which of them are finite, and the exponentials (``logsumexp_out_impl`` in ``ReduceOps.cpp``)."""
    source: torch.Tensor = args[0]
    return TemporaryBytes(around_results=(result.nbytes, (result.nbytes, result.numel()), source.nbytes))


def _safe_softmax(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """Masks of elements and of rows that are minus infinity (``_safe_softmax`` in ``SoftMax.cpp``)."""
    columns = result.shape[args[1]] if result.dim() else 1
    return TemporaryBytes(after_results=(result.numel(), result.numel() // max(columns, 1)))


def _isinf(args: tuple[Any, ...], _result: torch.Tensor) -> TemporaryBytes:
    """Absolute values, of real numbers with a point (``isinf`` in ``TensorCompare.cpp``)."""
    values: torch.Tensor = args[0]
    return TemporaryBytes(around_results=(values.nbytes,)) if values.is_floating_point() else NO_TEMPORARIES


def _roll(args: tuple[Any, ...], result: torch.Tensor, *, on_cuda: bool) -> TemporaryBytes:
    """What is rolled along the dimensions before the last (``roll_common`` in ``TensorTransformations.h``).

    Along one dimension, CUDA's kernel reads a contiguous copy (``roll_cuda`` in ``TensorTransformations.cu``).
    """
    dims = args[2] if len(args) > 2 else ()
    copied = 1 if on_cuda and not args[0].is_contiguous() else 0
    return TemporaryBytes(around_results=(result.nbytes,) * max(len(dims) - 1, copied))


def _reduced_loss(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """The elementwise loss before the reduction (``mse_loss_out`` and its like in ``Loss.cpp``)."""
    if len(args) > 2 and args[2] == NO_REDUCTION:
        return NO_TEMPORARIES
    elements = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()  # type: ignore[no-untyped-call]  # untyped in torch
    return TemporaryBytes(after_results=(elements * result.element_size(),))


def _entropy_of_logits(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """The logarithm of the sigmoid and the weighted logits (``binary_cross_entropy_with_logits`` in ``Loss.cpp``).

    Without a reduction, the second of them is the result.
    """
    logits: torch.Tensor = args[0]
    is_reduced = not result.dim() or result.nbytes != logits.nbytes
    return TemporaryBytes(after_results=(logits.nbytes,) * (2 if is_reduced else 1))


def _index(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    return _positions_of_masks(args[0], args[1], result)


def _index_put(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    values: torch.Tensor = args[2]
    accumulates = len(args) > 3 and bool(args[3])
    if values.numel() == 1 and not accumulates:  # ``masked_fill`` runs instead
        return NO_TEMPORARIES
    return _positions_of_masks(args[0], args[1], values)


def _positions_of_masks(
    source: torch.Tensor, indices: list[torch.Tensor | None], selected: torch.Tensor
) -> TemporaryBytes:
    """Positions that a mask selects, one int64 per dimension (``expandTensors``)."""
    masks = _masks(indices)
    if not masks:
        return NO_TEMPORARIES
    return TemporaryBytes(
        around_results=(selected_positions(source, indices, selected) * masks[0].dim() * INT64_BYTES,)
    )


def _dist(args: tuple[Any, ...], _result: torch.Tensor) -> TemporaryBytes:
    """The difference before its norm (``dist`` in ``Distance.cpp``)."""
    elements = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()  # type: ignore[no-untyped-call]  # untyped in torch
    return TemporaryBytes(before_results=(elements * args[0].element_size(),))


def _euclidean_dist(args: tuple[Any, ...], _result: torch.Tensor) -> TemporaryBytes:
    """Both sets of points with two more columns each, so that one product gives all squares (``_euclidean_dist``).

    The columns are a sum of squares and a one for every point. They and the scaled first set live until its columns
    have been added (``Distance.cpp``).
    """
    points, others = args[:2]
    column, other_column = (each.nbytes // max(each.shape[-1], 1) for each in (points, others))
    first, second = points.nbytes + 2 * column, others.nbytes + 2 * other_column
    adding = (column, column, other_column, other_column, points.nbytes, first)
    return TemporaryBytes(around_results=(adding, first, second))


def _trilinear(args: tuple[Any, ...], result: torch.Tensor) -> TemporaryBytes:
    """The product of two factors, and that with the third, one slice at a time (``_trilinear`` in ``Linear.cpp``)."""
    expanded, summed = args[3:6], args[6]
    unrolled = args[7] if len(args) > 7 else 1
    sizes = [_expanded_sizes(factor, dims) for factor, dims in zip(args[:3], expanded, strict=True)]
    summed_first = {dim for dim in summed if dim in expanded[2]}
    elements = _elements_but(sizes[:2], {unrolled, *summed_first}) + _elements_but(sizes, {unrolled, *summed})
    return TemporaryBytes(after_results=(elements * result.element_size(),))


def _elements_but(factors: list[list[int]], left_out: set[int]) -> int:
    """Return how many elements a product of factors has, without some dimensions."""
    return math.prod(max(of_dim) for dim, of_dim in enumerate(zip(*factors, strict=True)) if dim not in left_out)


def _expanded_sizes(factor: torch.Tensor, expanded: list[int]) -> list[int]:
    sizes = list(factor.shape)
    for dim in sorted(expanded):
        sizes.insert(dim, 1)
    return sizes


def _affine_grid(args: tuple[Any, ...], _result: torch.Tensor) -> TemporaryBytes:
    """Homogeneous coordinates of every pixel (``make_base_grid_4D`` in ``AffineGridGenerator.cpp``)."""
    matrices, image_shape = args[:2]
    pixels = math.prod(image_shape) // image_shape[1]
    return TemporaryBytes(around_results=(pixels * (len(image_shape) - 1) * matrices.element_size(),))


def _factored_matrix(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """Both factors in one matrix, and the pivots (``linalg_inv_ex_out`` in ``BatchLinearAlgebra.cpp``).

    Here and below, work areas of LAPACK and the like are not counted.
    """
    matrix: torch.Tensor = args[0]
    return TemporaryBytes(after_results=(matrix.nbytes + matrix.numel() // max(matrix.shape[-1], 1) * _INT32_BYTES,))


def _read_matrix(args: tuple[Any, ...], _result: Any) -> TemporaryBytes:
    """A column-major copy of the input (``cloneBatchedColumnMajor``)."""
    return TemporaryBytes(after_results=(args[0].nbytes,))


def _matrix_exponential(args: tuple[Any, ...], _result: torch.Tensor) -> TemporaryBytes:
    """Powers and their combinations, five of each, and the scaled matrix (``compute_T18`` in ``LinearAlgebra.cpp``).

    Batches always use the polynomial of highest degree, a single matrix only if its norm is large; that is assumed.
    """
    matrices: torch.Tensor = args[0]
    size = matrices.shape[-1]
    if size < 2:
        return NO_TEMPORARIES
    if matrices.numel() > size * size:
        return TemporaryBytes(before_results=(11 * matrices.nbytes,))
    # The result is allocated first, and filled from a copy of the matrix.
    return TemporaryBytes(after_results=(12 * matrices.nbytes,))
