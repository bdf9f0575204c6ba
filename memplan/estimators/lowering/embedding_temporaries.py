"""Temporaries of CUDA's gradients of embeddings, which sum the gradients of equal indices after a sort."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.determinism import prefers_deterministic
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes
from memplan.estimators.temporaries.radix_sorts import radix_sort
from memplan.estimators.temporaries.ruled_blocks import ruled_blocks
from memplan.estimators.temporaries.sorts import SortOfIndices, SumsByIndex

if TYPE_CHECKING:
    import torch

    from memplan.estimators.lowering.temporary_bytes import Rule
    from memplan.estimators.temporaries.radix_sorts import RadixSort

_MOST_AT_ONCE = 3072
_MAX_MODE = 2  # ``EmbeddingBagMode::MAX``
_ROWS_PER_MULTIPROCESSOR = 4  # of tables that are added to in place
_ASSUMED_MULTIPROCESSORS = 132  # an H100's


def embedding_rules(capability: tuple[int, int], multiprocessors: int | None) -> dict[str, Rule]:
    """Return the rules by operator name without overload.

    Args:
        capability: compute capability of the card.
        multiprocessors: of the card; None where only its memory is known.
    """
    most_rows = _ROWS_PER_MULTIPROCESSOR * (multiprocessors or _ASSUMED_MULTIPROCESSORS) - 1

    def of_embedding(args: tuple[Any, ...], result: Any) -> TemporaryBytes:
        """``embedding_dense_backward_cuda`` in ``Embedding.cu``, where one block of threads adds up few gradients."""
        indices: torch.Tensor = args[1]
        by_frequency = len(args) > 4 and bool(args[4])
        most_at_once = 0 if by_frequency else _MOST_AT_ONCE
        sort = SortOfIndices(of_indices=sorted_like(indices), counts_each=by_frequency, most_at_once=most_at_once)
        sums = SumsByIndex(
            index_bytes=indices.element_size(),
            most_at_once=most_at_once,
            most_rows=0 if prefers_deterministic() else most_rows,
        )
        return _summed_by_index(indices, result, sort, sums)

    def of_bags(args: tuple[Any, ...], result: Any) -> TemporaryBytes:
        """``embedding_bag_backward_cuda_sum_avg`` in ``EmbeddingBag.cu``, which sorts any number; maxima have none."""
        indices: torch.Tensor = args[1]
        by_frequency, mode, is_sparse = args[7:10]
        if mode == _MAX_MODE or is_sparse:
            return NO_TEMPORARIES
        sort = SortOfIndices(of_indices=sorted_like(indices), counts_each=bool(by_frequency), most_at_once=0)
        sums = SumsByIndex(index_bytes=indices.element_size(), most_at_once=0, most_rows=0)
        return _summed_by_index(indices, result, sort, sums)

    def sorted_like(indices: torch.Tensor) -> RadixSort:
        return radix_sort(capability, indices.element_size(), indices.element_size())

    return {"aten.embedding_dense_backward": of_embedding, "aten._embedding_bag_backward": of_bags}


def _summed_by_index(
    indices: torch.Tensor, gradient: torch.Tensor, sort: SortOfIndices, sums: SumsByIndex
) -> TemporaryBytes:
    """Sorted indices, segments of equal ones, and their sums (``embedding_backward_cuda_kernel``)."""
    count, (rows, width) = indices.numel(), gradient.shape
    of_all, originals, positions, sorting, counts = ruled_blocks(sort, count, rows)
    distinct, scratch, *partial = ruled_blocks(sums, count, rows, width, gradient.element_size())
    return TemporaryBytes(
        throughout=(of_all, originals, (positions, sorting), counts), after_results=(distinct, (scratch,), *partial)
    )
