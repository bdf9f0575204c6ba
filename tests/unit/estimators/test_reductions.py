"""What a reduction takes for partial results, on a card small enough to follow in the head."""

from __future__ import annotations

import numpy as np
import pytest

from memplan.estimators.reductions import GrowingReduction, Reduction, StagedReductions
from memplan.units import MIB


def reduction(outputs: int = 128, values: int = 4096, *, item_bytes: int = 4, outputs_per_thread: int = 4) -> Reduction:
    """Return a reduction on one multiprocessor of 2,048 threads, which are 16 thread blocks of 128."""
    return Reduction(
        outputs=outputs,
        values_per_output=values,
        item_bytes=item_bytes,
        accumulator_bytes=4,
        outputs_per_thread=outputs_per_thread,
        multiprocessors=1,
        threads_per_multiprocessor=2048,
    )


def test_thread_blocks_that_share_an_output_have_a_row_of_partial_results_each() -> None:
    # 32 columns of 4 outputs and 4 rows are one thread block; 16 of them share the values.
    # PyTorch takes 32 * 4 times the 128 * 16 numbers.
    assert reduction().staging_bytes() == 4 * 128 * 16 * 32 * 4 == MIB


def test_a_thread_has_sixteen_values_at_least() -> None:
    # 256 values in 4 rows are 64 each, too few to share.
    assert reduction(values=256).staging_bytes() == 0
    # 1,024 values in 4 rows are 256 each: 16 thread blocks of 16 values.
    assert reduction(values=1024).staging_bytes() == MIB


def test_a_thread_has_256_values_at_most() -> None:
    # 32,768 values in 4 rows are 8,192 each: 32 thread blocks, although 16 fill the card.
    assert reduction(values=32_768).staging_bytes() == 2 * MIB


def test_outputs_that_fill_the_card_are_not_shared() -> None:
    assert reduction(outputs=128 * 17).staging_bytes() == 0  # 17 thread blocks, and 16 run at once
    assert reduction(outputs=128 * 16, values=1023).staging_bytes() == 0


def test_two_gigabytes_are_reduced_in_halves() -> None:
    whole, half = reduction(values=2**22 + 2), reduction(values=2**21 + 1)
    assert whole.staging_bytes() == half.staging_bytes()


@pytest.mark.parametrize(("outputs", "values"), [(768, 6272), (3072, 6272), (384, 50_432)])
def test_a_large_card_takes_what_pytorch_asks_for_there(outputs: int, values: int) -> None:
    on_a100 = Reduction(
        outputs=outputs,
        values_per_output=values,
        item_bytes=4,
        accumulator_bytes=4,
        outputs_per_thread=4,
        multiprocessors=108,
        threads_per_multiprocessor=2048,
    )
    asked_for = {768: 38_535_168, 3072: 113_246_208, 384: 113_246_208}  # by torch 2.11, see benchmarks/cuda_stubs
    assert on_a100.staging_bytes() == asked_for[outputs]


def test_blocks_follow_the_micro_batch() -> None:
    growing = GrowingReduction(reduction=reduction(values=0), outputs_per_item=0, values_per_item=1024)
    staged = StagedReductions(blocks=np.array([5, 9]), numbers=np.array([0, 0]), reductions=(growing,))
    assert staged.block_bytes(1).tolist() == [MIB, MIB]
    assert staged.block_bytes(32).tolist() == [2 * MIB, 2 * MIB]
