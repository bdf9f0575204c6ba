"""Temporaries of CUDA's gradients of embeddings, which sum the gradients of equal indices after a sort."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes
from memplan.estimators.temporaries.ruled_blocks import ruled_blocks
from memplan.estimators.temporaries.sorts import sorted_indices, sums_by_index

if TYPE_CHECKING:
    import torch

    from memplan.estimators.lowering.temporary_bytes import Rule

_MAX_MODE = 2  # ``EmbeddingBagMode::MAX``
_ROWS_PER_MULTIPROCESSOR = 4  # of tables that are added to in place
_ASSUMED_MULTIPROCESSORS = 132  # an H100's


def embedding_rules(multiprocessors: int | None) -> dict[str, Rule]:
    """Return the rules by operator name without overload.

    Args:
        multiprocessors: of the card; None where only its memory is known.
    """
    most_rows = _ROWS_PER_MULTIPROCESSOR * (multiprocessors or _ASSUMED_MULTIPROCESSORS) - 1

    def of_embedding(args: tuple[Any, ...], result: Any) -> TemporaryBytes:
        """``embedding_dense_backward_cuda`` in ``Embedding.cu``."""
        indices: torch.Tensor = args[1]
        by_frequency = len(args) > 4 and bool(args[4])
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
    """Sorted indices, segments of equal ones, and their sums (``embedding_backward_cuda_kernel``)."""
    count, (rows, width) = indices.numel(), gradient.shape
    index_bytes, number_bytes = indices.element_size(), gradient.element_size()
    of_all, originals, positions, second_pairs, counts = ruled_blocks(
        sorted_indices, count, rows, index_bytes, int(by_frequency)
    )
    distinct, scratch, *sums = ruled_blocks(
        sums_by_index, count, rows, width, index_bytes, number_bytes, most_rows, int(by_frequency)
    )
    return TemporaryBytes(
        throughout=(of_all, originals, (positions, second_pairs), counts), after_results=(distinct, (scratch,), *sums)
    )
