"""Temporaries of CUDA's gradients of embeddings, which sum the gradients of equal indices after a sort."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes

if TYPE_CHECKING:
    from collections.abc import Callable

_FEW_EMBEDDINGS = 3072
_INDICES_OF_A_PARTIAL_SUM = 10  # ``NROWS_PER_THREAD``
_BITS_OF_A_PASS = 8  # CUB's radix sort needs no second pairs for one pass (``dispatch_radix_sort.cuh``)
_MAX_MODE = 2  # ``EmbeddingBagMode::MAX``
_ROWS_PER_MULTIPROCESSOR = 4  # of tables that are added to in place; at least so many partial sums a row, too
_ASSUMED_MULTIPROCESSORS = 132  # an H100's


def embedding_rules(multiprocessors: int | None) -> dict[str, Callable[[tuple[Any, ...], Any], TemporaryBytes]]:
    """Return the rules by operator name without overload.

    Args:
        multiprocessors: of the card; None where only its memory is known.
    """
    most_rows = _ROWS_PER_MULTIPROCESSOR * (multiprocessors or _ASSUMED_MULTIPROCESSORS) - 1

    def of_embedding(args: tuple[Any, ...], result: Any) -> TemporaryBytes:
        """``embedding_dense_backward_cuda`` in ``Embedding.cu``."""
        indices: torch.Tensor = args[1]
        by_frequency = len(args) > 4 and bool(args[4])
        if indices.numel() <= _FEW_EMBEDDINGS and not by_frequency:
            return NO_TEMPORARIES
        return _summed_by_index(indices, result, by_frequency=by_frequency, most_rows=most_rows)

    def of_bags(args: tuple[Any, ...], result: Any) -> TemporaryBytes:
        """``embedding_bag_backward_cuda_sum_avg`` in ``EmbeddingBag.cu``; maxima have none."""
        by_frequency, mode, is_sparse = args[7:10]
        if mode == _MAX_MODE or is_sparse:
            return NO_TEMPORARIES
        return _summed_by_index(args[1], result, by_frequency=by_frequency, most_rows=most_rows)

    return {"aten.embedding_dense_backward": of_embedding, "aten._embedding_bag_backward": of_bags}


def _summed_by_index(
    indices: torch.Tensor, gradient: torch.Tensor, *, by_frequency: bool, most_rows: int
) -> TemporaryBytes:
    """Sorted indices, segments of equal ones, and partial sums of ten gradients each, in at least fp32.

    Or, where a table has few rows and each of them many partial sums, sums in place (``embedding_backward_cuda_kernel``
    in ``EmbeddingBackwardKernel.cu``, whose choice was found by trying sizes with torch 2.13).
    """
    count, (rows, width) = indices.numel(), gradient.shape
    segments = min(count, rows)
    partials = count // _INDICES_OF_A_PARTIAL_SUM + segments
    item_bytes = indices.element_size()
    sorted_bytes, places_bytes = count * item_bytes, partials * item_bytes
    counts = (sorted_bytes,) if by_frequency else ()
    number_bytes = max(gradient.element_size(), torch.float32.itemsize)
    sums: tuple[int, ...] = (partials * width * number_bytes,)
    if segments <= most_rows and partials >= _ROWS_PER_MULTIPROCESSOR * segments:
        in_single = () if gradient.element_size() == number_bytes else (rows * width * number_bytes,)
        sums = (places_bytes, *in_single)
    of_segments = segments * item_bytes
    second_pairs = (2 * sorted_bytes,) if rows >= 1 << _BITS_OF_A_PASS else ()
    return TemporaryBytes(
        throughout=(sorted_bytes, sorted_bytes, (sorted_bytes, *second_pairs), *counts),
        after_results=(sorted_bytes, (sorted_bytes,), of_segments, of_segments, places_bytes, *sums),
    )
