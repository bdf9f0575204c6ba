"""Which of Inductor's kernels have several variants, which are timed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch

from tests.unit.estimators.lowering.inductor_codes import code_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.estimators.lowering.kernel_variants import TimedKernel

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method:DeprecationWarning"
)  # of what Inductor imports


def timed_kernels_of(
    function: Callable[..., object], *inputs: torch.Tensor, is_backward: bool = False
) -> list[TimedKernel | None]:
    from memplan.estimators.lowering.kernel_variants import timed_kernel  # noqa: PLC0415 - imports Inductor

    code = code_of(function, *inputs, is_backward=is_backward)
    return [timed_kernel(each) for each in re.findall(r"async_compile\.triton\(.*?'''(.*?)'''", code.source, re.DOTALL)]


@pytest.mark.parametrize(
    ("function", "shape", "is_timed"),
    [
        pytest.param(lambda x: (x.sin(),), (1024,), True, id="elements, in blocks of two sizes"),
        pytest.param(lambda x: (x.sin(),), (16,), False, id="elements of one block"),
        pytest.param(lambda x: (x.sum(-1),), (64, 1024), False, id="sums of what lies side by side"),
        pytest.param(lambda x: (x.sum(-1),), (64, 64), True, id="sums of so little that several share a block"),
        pytest.param(lambda x: (x.sum(0),), (32, 64), True, id="sums whose order is not looked at"),
    ],
)
def test_kernels_are_timed_where_there_are_several_ways(
    function: Callable[..., object], shape: tuple[int, ...], is_timed: bool
) -> None:
    (timed,) = timed_kernels_of(function, torch.ones(shape))
    assert (timed is not None) is is_timed


@pytest.mark.parametrize("is_backward", [False, True])
def test_what_a_kernel_changes_is_known_and_is_copied_within_the_peak_in_backward_passes(is_backward: bool) -> None:
    (timed,) = timed_kernels_of(lambda x: ((x @ x).sin() * x,), torch.ones(64, 64), is_backward=is_backward)
    assert timed is not None
    assert (timed.changed, timed.within_peak) == ((0,), is_backward)


def test_variants_are_counted() -> None:
    (timed,) = timed_kernels_of(lambda x: (x.sin(),), torch.ones(1024))
    assert timed is not None
    assert timed.variant_count == 2


def test_kernels_of_several_tensors_have_one_variant() -> None:
    assert timed_kernels_of(lambda x: tuple(torch._foreach_add([x, x.sin()], 1.0)), torch.ones(1024)) == [None]


def test_where_variants_are_searched_for_all_are_timed() -> None:
    from torch._inductor import config  # noqa: PLC0415 - imports Inductor

    with config.patch(coordinate_descent_tuning=True):
        (timed,) = timed_kernels_of(lambda x: (x.sin(),), torch.ones(16))
    assert timed is not None


def test_helpers_of_a_kernel_are_no_kernels() -> None:
    assert len(timed_kernels_of(lambda x: (x.cumsum(-1),), torch.ones(4, 64))) == 1
