"""What of an operator's operand decides how a card reduces it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from memplan.estimators.lowering.cuda_reductions import cuda_reduction
from memplan.estimators.lowering.kernel_rules import cuda_kernels
from memplan.estimators.temporaries.reductions import Reduction
from memplan.estimators.temporaries.ruled_blocks import RuledBlock
from tests.tensors import meta

AMPERE = (8, 0)


def found(
    source: torch.Tensor, dims: list[int], operator: str = "aten.sum", *, dtype: torch.dtype | None = None
) -> tuple[int, ...] | None:
    result = source.amax(dims) if operator == "aten.amax" else source.sum(dims, dtype=dtype)
    reduction = cuda_reduction(operator, (source, dims), result, AMPERE, 108)
    if reduction is None:
        return None
    rule = reduction.rule
    assert isinstance(rule, Reduction)
    assert (rule.multiprocessors, rule.threads_per_multiprocessor) == (108, 2048)
    return (*reduction.lengths, rule.outputs_per_thread, rule.accumulator_bytes)


def test_a_bias_gradient_sums_rows() -> None:
    assert found(meta(4096, 128), [0]) == (128, 4096, 4, 4)
    assert found(meta(8, 512, 128), [0, 1]) == (128, 4096, 4, 4)


def test_a_sum_along_the_innermost_dimension_takes_next_to_nothing() -> None:
    assert found(meta(4096, 128), [1]) is None
    assert found(meta(4096, 128), []) is None
    assert found(meta(8, 16, 56, 56), [0, 2, 3]) is None


def test_channels_last_images_keep_their_innermost_dimension() -> None:
    assert found(meta(8, 16, 56, 56).to(memory_format=torch.channels_last), [0, 2, 3]) == (16, 8 * 56 * 56, 4, 4)


def test_what_is_reduced_between_kept_dimensions_counts_once_per_output() -> None:
    assert found(meta(8, 512, 128), [1]) == (8 * 128, 512, 4, 4)


@pytest.mark.parametrize(("width", "outputs_per_thread"), [(128, 4), (130, 2), (129, 1)])
def test_outputs_are_read_together_where_their_number_allows(width: int, outputs_per_thread: int) -> None:
    assert found(meta(4096, width), [0]) == (width, 4096, outputs_per_thread, 4)


def test_a_view_that_begins_between_is_read_one_by_one() -> None:
    assert found(meta(4097 * 128)[1 : 1 + 4096 * 128].view(4096, 128), [0]) == (128, 4096, 1, 4)


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.bfloat16, 4), (torch.float32, 4), (torch.float64, 8), (torch.int32, 8)], ids=str
)
def test_sums_are_accumulated_in_single_precision_at_least(dtype: torch.dtype, size: int) -> None:
    assert found(meta(4096, 128, dtype=dtype), [0]) == (128, 4096, 4, size)


def test_sums_are_accumulated_in_the_type_that_was_asked_for() -> None:
    assert found(meta(4096, 128), [0], dtype=torch.float64) == (128, 4096, 4, 8)


def test_extremes_are_kept_in_their_own_type() -> None:
    assert found(meta(4096, 128, dtype=torch.bfloat16), [0], "aten.amax") == (128, 4096, 4, 2)


@pytest.mark.parametrize(
    ("operator", "args", "size"),
    [
        ("aten.linalg_vector_norm", (2, [0]), 4),
        ("aten.norm", (2, [0], True), 4),
        ("aten.prod", (0,), 4),
        ("aten.max", (0,), 16),  # a value and its place
        ("aten.argmin", (0,), 16),
        ("aten.any", (0,), 1),
        ("aten.all", ([0],), 1),
    ],
)
def test_norms_places_and_conditions_are_reduced_likewise(operator: str, args: tuple[Any, ...], size: int) -> None:
    rows = meta(4096, 128, dtype=torch.float16)
    reduction = cuda_reduction(operator, (rows, *args), rows.sum(0), AMPERE, 108)
    assert reduction is not None
    assert isinstance(reduction.rule, Reduction)
    assert (reduction.lengths, reduction.rule.accumulator_bytes) == ((128, 4096), size)


def test_the_larger_of_two_and_norms_of_everything_are_no_such_reductions() -> None:
    rows = meta(4096, 128)
    assert cuda_reduction("aten.max", (rows, rows), rows, AMPERE, 108) is None
    assert cuda_reduction("aten.linalg_vector_norm", (rows, 2), rows.sum(), AMPERE, 108) is None
    assert cuda_reduction("aten.linalg_vector_norm", (rows, 2, None), rows.sum(), AMPERE, 108) is None


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 16), (torch.float64, 32)], ids=str)
def test_variances_are_accumulated_as_four_numbers(dtype: torch.dtype, size: int) -> None:
    assert found(meta(4096, 128, dtype=dtype), [0], "aten.var") == (128, 4096, 4, size)


def backward_of_a_convolution(gradient: torch.Tensor, *, with_bias: bool) -> tuple[Any, ...]:
    weight = meta(16, 16, 3, 3)
    return (gradient, gradient, weight, [16], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, with_bias])


def test_the_bias_of_a_convolution_in_channels_last_is_such_a_sum() -> None:
    gradient = meta(8, 16, 56, 56).to(memory_format=torch.channels_last)
    args = backward_of_a_convolution(gradient, with_bias=True)
    reduction = cuda_reduction("aten.convolution_backward", args, None, AMPERE, 108)
    assert reduction is not None
    assert reduction.lengths == (16, 8 * 56 * 56)


def test_a_convolution_without_bias_or_in_channels_first_sums_nothing_so() -> None:
    gradient = meta(8, 16, 56, 56)
    for args in (
        backward_of_a_convolution(gradient, with_bias=True),
        backward_of_a_convolution(gradient.to(memory_format=torch.channels_last), with_bias=False),
    ):
        assert cuda_reduction("aten.convolution_backward", args, None, AMPERE, 108) is None


def test_a_running_sum_is_no_reduction() -> None:
    assert found(meta(4096, 128), [0], "aten.cumsum") is None


def test_a_converted_input_lives_beside_the_partial_results_of_its_sum() -> None:
    hits = meta(3072, 256, dtype=torch.bool)
    kernels = cuda_kernels(AMPERE, 108)
    summed = kernels.temporary_bytes("aten.sum", (hits, [0]), hits.sum(0))
    integers, partial_results = summed.after_results
    assert (integers, summed.before_return) == (hits.numel() * 8, ())
    assert isinstance(partial_results, RuledBlock)


def test_what_is_not_zero_is_counted_by_a_sum_of_integers() -> None:
    values = meta(4096, 128)
    reduction = cuda_reduction("aten.count_nonzero", (values, [0]), values.long().sum(0), AMPERE, 108)
    assert reduction is not None
    assert isinstance(reduction.rule, Reduction)
    assert (reduction.lengths, reduction.rule.accumulator_bytes) == ((128, 4096), 8)
