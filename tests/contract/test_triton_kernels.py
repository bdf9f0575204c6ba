"""Steps that launch kernels written in Triton, on a card that is not there.

Where Triton is not installed, as beside a PyTorch without CUDA, a package of the same names stands in for it, whose
kernels cannot be launched either.
"""

from __future__ import annotations

import importlib
import importlib.util
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

    from memplan.estimators import StepTrace

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the child cannot import the tests
CARD = find_card("h100")
HAS_TRITON = importlib.util.find_spec("triton") is not None
WIDTH = 1024
STAND_IN = {
    "triton/__init__.py": """
        from triton.runtime.autotuner import Autotuner, Config
        from triton.runtime.jit import JITFunction as jit

        def autotune(configs, key, restore_value=None):
            return lambda kernel: Autotuner(kernel, kernel.arg_names, configs, key, restore_value)
    """,
    "triton/language.py": "constexpr = int",
    "triton/runtime/__init__.py": "",
    "triton/runtime/jit.py": """
        import inspect

        class KernelInterface:
            def __getitem__(self, grid):
                return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

        class JITFunction(KernelInterface):
            def __init__(self, fn):
                self.fn = fn
                self.arg_names = list(inspect.signature(fn).parameters)

            def run(self, *args, grid, warmup, **kwargs):
                raise RuntimeError("0 active drivers ([]). There should only be one.")
    """,
    "triton/runtime/autotuner.py": """
        from triton.runtime.jit import KernelInterface

        class Config:
            def __init__(self, kwargs, pre_hook=None):
                self.kwargs = kwargs
                self.pre_hook = pre_hook

            def all_kwargs(self):
                return self.kwargs

        class Autotuner(KernelInterface):
            def __init__(self, fn, arg_names, configs, key, restore_value):
                self.fn = fn
                self.arg_names = arg_names
                self.configs = configs
                self.keys = key
                self.restore_value = restore_value or []

            def run(self, *args, **kwargs):
                raise RuntimeError("0 active drivers ([]). There should only be one.")
    """,
}
KERNELS = """
    import triton
    import triton.language as tl

    @triton.jit
    def double(given, made, count, BLOCK: tl.constexpr):
        places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(made + places, 2 * tl.load(given + places, mask=places < count), mask=places < count)

    _CONFIGS = [triton.Config({"BLOCK": block}) for block in (256, 512)]
    tuned = triton.autotune(_CONFIGS, key=["count"])(double)
    restoring = triton.autotune(_CONFIGS, key=["count"], restore_value=["made"])(double)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the module ``doubling``, which has kernels."""
    made = tmp_path_factory.mktemp("kernels")
    files = {"doubling.py": KERNELS, **({} if HAS_TRITON else STAND_IN)}
    for name, text in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(textwrap.dedent(text))
    return made


class Doubled(torch.autograd.Function):
    """Launches a kernel; its gradient is another launch."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, launch: Callable[..., None]) -> torch.Tensor:
        ctx.launch = launch
        return Doubled.launched(values, launch)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return Doubled.launched(gradients[0], ctx.launch), None

    @staticmethod
    def launched(values: torch.Tensor, launch: Callable[..., None]) -> torch.Tensor:
        made = torch.empty_like(values, memory_format=torch.contiguous_format)
        launch(values, made, values.numel())
        return made


class Net(nn.Linear):
    """A product of 4 MiB of weights, doubled."""

    def __init__(self, folder: str, kernel: str) -> None:
        super().__init__(WIDTH, WIDTH, bias=False)
        sys.path.insert(0, folder)
        self.kernel = getattr(importlib.import_module("doubling"), kernel)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(super().forward(batch), self.launch)  # type: ignore[no-any-return, no-untyped-call]  # untyped in torch

    def launch(self, given: torch.Tensor, made: torch.Tensor, count: int) -> None:
        block = {} if hasattr(self.kernel, "configs") else {"BLOCK": 256}
        self.kernel[(count // 256,)](given, made, count, **block)


def trace_of(folder: Path, kernel: str, wrap: Callable[[nn.Module], Any] = lambda model: model) -> StepTrace:
    path = str(folder)
    workload = Workload(
        model=lambda: wrap(Net(path, kernel)),
        batch=lambda size: torch.zeros(size, WIDTH),
        loss=lambda model, batch: model(batch).sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    return traced(workload, CARD)


def peak_mib(trace: StepTrace) -> float:
    """Return what a step of 1,024 rows, of 4 MiB each time they are held, takes at its peak."""
    return estimate(trace, micro_batch_size=1024, device=CARD).peak_allocated_bytes / MIB


def test_a_kernel_takes_nothing_beside_what_it_is_given(folder: Path) -> None:
    weights, batch, gradients, workspaces = 4, 4, 2 * 4, 2 * 32
    assert peak_mib(trace_of(folder, "double")) == pytest.approx(weights + batch + gradients + workspaces, abs=0.01)


@pytest.mark.parametrize(("kernel", "copies"), [("tuned", 0), ("restoring", 4)])
def test_a_kernel_that_is_tuned_is_timed_beside_a_buffer(folder: Path, kernel: str, copies: int) -> None:
    weights, batch, product, made, workspace, buffer = 4, 4, 4, 4, 32, 256
    expected = weights + batch + product + made + workspace + buffer + copies
    assert peak_mib(trace_of(folder, kernel)) == pytest.approx(expected, abs=0.01)


@pytest.mark.skipif(not HAS_TRITON, reason="PyTorch looks into Triton where code is compiled")
def test_code_that_launches_kernels_is_not_captured_as_a_graph_that_would_miss_what_they_write(folder: Path) -> None:
    trace = trace_of(folder, "double", torch.compile)
    assert not any(name.startswith("compiled") for name in trace.timelines[0].operator_names)
    assert peak_mib(trace) == peak_mib(trace_of(folder, "double"))
