"""Sums in parts for the gradients of layer norm's parameters."""

from __future__ import annotations

import pytest

from memplan.estimators.temporaries.layer_gradient_parts import LayerGradientParts
from memplan.estimators.temporaries.reductions import Reduction
from memplan.units import MIB

SUMS = Reduction(
    item_bytes=4, accumulator_bytes=4, outputs_per_thread=4, multiprocessors=132, threads_per_multiprocessor=2048
)
PARTS = LayerGradientParts(multiprocessors=132, sums=SUMS)


@pytest.mark.parametrize(
    ("rows", "columns", "parts_bytes"),
    [
        (64 * 1024, 512, 0),
        (64 * 1024 + 1, 512, 4 * MIB),  # 2,048 rows of 512 numbers, as many blocks of 32 as are launched
        (1 << 20, 512, 4 * MIB),
        (1 << 20, 2080, 504 * 2080 * 4),  # 32,768 blocks, 65 of them beside each other
        (1 << 20, 2112, 0),  # 66 blocks are half of the card
        (128 * 1024, 16, 4096 * 16 * 4),  # all rows, 32 at once
    ],
)
def test_many_narrow_rows_are_summed_in_parts(rows: int, columns: int, parts_bytes: int) -> None:
    assert PARTS(rows, columns)[0] == parts_bytes


def test_parts_are_put_together_as_a_sum_over_as_many_rows() -> None:
    assert PARTS(1 << 20, 512)[1] == SUMS(512, 2048)[0] == 8 * MIB  # on stubs of an H200 PyTorch 2.13 takes as much
