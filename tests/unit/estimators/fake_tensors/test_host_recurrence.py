"""The workspace of oneDNN's LSTM, held against what the operator itself returns."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.fake_tensors.fake_results import corrected_result
from memplan.estimators.fake_tensors.host_recurrence import LAYER
from tests.host_allocations import AS_MEASURED

LSTM = 2
PARTS, HALF_PAGE_BYTES = 7, 2048


def layer(steps: int, samples: int, width: int, hidden: int, dtype: torch.dtype, *, train: bool = True) -> list[object]:
    """Return the operator's arguments: input, weights, biases, states, and what kind of layer it is."""
    weights = [torch.zeros(4 * hidden, each, dtype=dtype) for each in (width, hidden)]
    biases = [torch.zeros(4 * hidden, dtype=dtype) for _ in range(2)]
    states = [torch.zeros(1, samples, hidden, dtype=dtype) for _ in range(2)]
    data = torch.zeros(steps, samples, width, dtype=dtype)
    return [data, *weights, *biases, *states, False, [], LSTM, hidden, 1, True, False, False, train]


def faked(arguments: list[object]) -> list[torch.Tensor]:
    fakes = TraceFakeMode()
    fake = [fakes.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in arguments]
    with fakes:
        return list(corrected_result(LAYER, tuple(fake), on_host=True))


@AS_MEASURED
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(1, 1, 32, 32), (20, 16, 128, 256), (20, 16, 512, 256), (32, 6, 64, 96)])
def test_the_workspace_is_what_the_operator_returns_but_for_its_pages(
    sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    arguments = layer(*sizes, dtype)
    assert faked(arguments)[3].nbytes == pytest.approx(LAYER(*arguments)[3].nbytes, abs=PARTS * HALF_PAGE_BYTES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_workspaces_grow_evenly_with_the_samples(dtype: torch.dtype) -> None:
    first, second, third = (faked(layer(8, samples, 16, 16, dtype))[3].nbytes for samples in (2, 3, 4))
    assert third - second == second - first


@AS_MEASURED
@pytest.mark.parametrize("hidden", [30, 33, 100])
def test_odd_widths_come_out_within_some_percent(hidden: int) -> None:
    arguments = layer(20, 16, 40, hidden, torch.float32)
    assert faked(arguments)[3].nbytes == pytest.approx(LAYER(*arguments)[3].nbytes, rel=0.03)


def test_nothing_is_kept_in_evaluation() -> None:
    assert faked(layer(2, 2, 16, 16, torch.float32, train=False))[3].nbytes == 0
