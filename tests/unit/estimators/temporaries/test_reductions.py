"""What a reduction takes for partial results, on a card small enough to follow in the head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memplan.estimators.temporaries.reductions import Reduction
from memplan.estimators.temporaries.ruled_blocks import GrowingRuledBlock, RuledBlock, RuledBlocks
from memplan.units import MIB

# One multiprocessor of 2,048 threads, which are 16 thread blocks of 128.
REDUCTION = Reduction(
    item_bytes=4, accumulator_bytes=4, outputs_per_thread=4, multiprocessors=1, threads_per_multiprocessor=2048
)


def staging_bytes(outputs: int = 128, values: int = 4096, rule: Reduction = REDUCTION) -> int:
    (size_bytes,) = rule(outputs, values)
    return size_bytes


def test_thread_blocks_that_share_an_output_have_a_row_of_partial_results_each() -> None:
    # 32 columns of 4 outputs and 4 rows are one thread block; 16 of them share the values.
    # PyTorch takes 32 * 4 times the 128 * 16 numbers.
    assert staging_bytes() == 4 * 128 * 16 * 32 * 4 == MIB


def test_a_thread_has_sixteen_values_at_least() -> None:
    # 256 values in 4 rows are 64 each, too few to share.
    assert staging_bytes(values=256) == 0
    # 1,024 values in 4 rows are 256 each: 16 thread blocks of 16 values.
    assert staging_bytes(values=1024) == MIB


def test_a_thread_has_256_values_at_most() -> None:
    # 32,768 values in 4 rows are 8,192 each: 32 thread blocks, although 16 fill the card.
    assert staging_bytes(values=32_768) == 2 * MIB


def test_outputs_that_fill_the_card_are_not_shared() -> None:
    assert staging_bytes(outputs=128 * 17) == 0  # 17 thread blocks, and 16 run at once
    assert staging_bytes(outputs=128 * 16, values=1023) == 0


def test_two_gigabytes_are_reduced_in_halves() -> None:
    assert staging_bytes(values=2**22 + 2) == staging_bytes(values=2**21 + 1)


@pytest.mark.parametrize(("outputs", "values"), [(768, 6272), (3072, 6272), (384, 50_432)])
def test_a_large_card_takes_what_pytorch_asks_for_there(outputs: int, values: int) -> None:
    on_a100 = replace(REDUCTION, multiprocessors=108)
    asked_for = {768: 38_535_168, 3072: 113_246_208, 384: 113_246_208}  # by torch 2.11, see benchmarks/cuda_stubs
    assert staging_bytes(outputs, values, on_a100) == asked_for[outputs]


def test_blocks_follow_the_micro_batch() -> None:
    growing = GrowingRuledBlock(block=RuledBlock(rule=REDUCTION, place=0, lengths=(128, 0)), per_item=(0, 1024))
    staged = RuledBlocks(blocks=np.array([5, 9]), numbers=np.array([0, 0]), different=(growing,))
    assert staged.block_bytes(1).tolist() == [MIB, MIB]
    assert staged.block_bytes(32).tolist() == [2 * MIB, 2 * MIB]
