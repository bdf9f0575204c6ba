"""Steps that call functions of compiled extensions, on a card that is not there.

A module that says of itself that it was loaded from a library stands in for an extension, whose functions read the
memory of tensors.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import torch
from torch import nn

from memplan.devices.cards import find_card
from memplan.estimators import estimate
from memplan.units import MIB
from memplan.workload import Workload
from tests.contract.tracing import traced

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the child cannot import the tests
CARD = find_card("h100")
WIDTH = 1024
EXTENSION = '''
    from importlib.machinery import ExtensionFileLoader, ModuleSpec

    __spec__ = ModuleSpec(__name__, ExtensionFileLoader(__name__, __file__))

    def double(x, out):
        """double(x: torch.Tensor, out: torch.Tensor) -> None"""
        out.data_ptr()
        out.copy_(2 * x)

    def doubled(x):
        """doubled(x: torch.Tensor) -> torch.Tensor"""
        x.data_ptr()
        return 2 * x
'''


class Doubled(torch.autograd.Function):
    """Doubles by a kernel that writes, as those who write one wrap it."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, double: Callable[..., None]) -> torch.Tensor:
        ctx.double = double
        return Doubled.computed(values, double)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return Doubled.computed(gradients[0], ctx.double), None

    @staticmethod
    def computed(values: torch.Tensor, double: Callable[..., None]) -> torch.Tensor:
        made = torch.empty_like(values, memory_format=torch.contiguous_format)
        double(values, made)
        return made


class Net(nn.Linear):
    """A product of 4 MiB of weights, doubled."""

    def __init__(self, folder: str, *, returns: bool) -> None:
        super().__init__(WIDTH, WIDTH, bias=False)
        sys.path.insert(0, folder)
        self.name = importlib.import_module("some_kernels").__name__
        self.returns = returns

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        kernels: Any = sys.modules[self.name]
        hidden = super().forward(batch)
        found: torch.Tensor = kernels.doubled(hidden) if self.returns else Doubled.apply(hidden, kernels.double)
        return found


@pytest.fixture
def workload(tmp_path: Path, request: pytest.FixtureRequest) -> Workload:
    (tmp_path / "some_kernels.py").write_text(textwrap.dedent(EXTENSION))
    folder, returns = str(tmp_path), bool(request.param)
    return Workload(
        model=lambda: Net(folder, returns=returns),
        batch=lambda count: torch.zeros(count, WIDTH),
        loss=lambda model, rows: model(rows).sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


@pytest.mark.parametrize("workload", [False], indirect=True)
def test_kernels_that_write_to_what_they_are_given_are_left_out_and_named(workload: Workload) -> None:
    trace = traced(workload, CARD)
    found = estimate(trace, micro_batch_size=WIDTH, device=CARD)
    assert found.breakdown.parameters == 4 * MIB
    assert "fake-tensor trace" in found.method
    assert found.uncounted == ("what these kernels take inside: some_kernels.double (2 calls)",)


@pytest.mark.parametrize("workload", [True], indirect=True)
def test_what_returns_something_is_computed(workload: Workload) -> None:
    trace = traced(workload, CARD)
    assert any("some_kernels.doubled of a compiled extension returns" in note for note in trace.notes)
