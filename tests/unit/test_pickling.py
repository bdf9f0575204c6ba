"""What users define in a script or notebook reaches a child process."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend

from memplan.children.compiled_modules import reduced_compiled_module
from memplan.children.pickling import pickled
from memplan.integrations.parcels import Parcel
from memplan.units import MIB

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "value",
    [torch.backends.cudnn, torch.ops.aten, torch.ops.aten.mm, torch.ops.aten.mm.default, SDPBackend],
    ids=["module of another class", "namespace", "operator", "overload", "class under another name"],
)
def test_what_is_found_by_name_arrives_as_itself(value: object) -> None:
    assert pickle.loads(pickled(lambda: value))() is value


def test_a_member_of_an_enumeration_of_pytorch_arrives() -> None:
    assert pickle.loads(pickled([SDPBackend.MATH])) == [SDPBackend.MATH]


def test_code_arrives_with_the_name_of_its_file() -> None:
    def outer() -> Any:
        return lambda: None

    arrived = pickle.loads(pickled(outer))
    assert arrived.__code__ is not outer.__code__  # it was made again
    assert arrived.__code__.co_filename == arrived().__code__.co_filename == __file__


def test_a_storage_that_many_tensors_view_is_sent_once() -> None:
    whole = torch.arange(1 << 18, dtype=torch.float32)  # 1 MiB
    samples = [whole[start : start + 1024] for start in range(0, 1 << 18, 1024)]
    payload = pickled({"whole": whole, "samples": samples})
    assert MIB < len(payload) < 2 * MIB
    arrived = pickle.loads(payload)
    assert torch.equal(arrived["samples"][3], samples[3])
    arrived["whole"][3 * 1024] = -1.0
    assert arrived["samples"][3][0] == -1.0


class Doubling(nn.Module):
    """Doubles what it is given."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return 2 * batch


def triple(graph: torch.fx.GraphModule, _inputs: object) -> object:
    """Compile a graph wrongly, so that it shows."""
    return lambda *values: tuple(3 * each for each in graph(*values))


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # of what compile imports
def test_a_module_that_is_compiled_arrives_compiled_in_the_same_way() -> None:
    model = nn.Sequential(nn.Identity(), Doubling())
    model[1].compile(backend=triple)
    for arrived in (pickle.loads(pickled(model)), pickle.loads(pickle.dumps(Parcel(model))).opened()):
        assert arrived[0]._compiled_call_impl is None
        assert arrived(torch.ones(())) == model(torch.ones(())) == 6


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # as above
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {"options": None, "dynamic": None}),
        ({"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}, "dynamic": None}),
        ({"backend": "aot_eager", "dynamic": True}, {"backend": "aot_eager", "dynamic": True}),
    ],
)
def test_what_a_module_is_compiled_with_is_kept(given: dict[str, object], kept: dict[str, object]) -> None:
    module = nn.Identity()
    module.compile(**given)
    reduced = reduced_compiled_module(module)
    assert reduced is not None
    assert reduced[2][1] == kept


def test_a_module_that_is_not_compiled_or_kept_from_it_is_pickled_as_always() -> None:
    module = nn.Identity()
    assert reduced_compiled_module(module) is None
    module.compile(disable=True)
    assert reduced_compiled_module(module) is None


class _JitFunction:
    """Holds a function and what cannot be pickled, as a kernel in Triton does; it reads its own source."""

    def __init__(self, fn: Any, version: int | None = None) -> None:
        self.fn = fn
        self.version = version
        self.source = inspect.getsource(fn)
        self.lock = threading.RLock()


_JitFunction.__module__, _JitFunction.__name__ = "triton.runtime.jit", "JITFunction"


def test_kernels_of_a_notebook_are_made_again_from_their_source(tmp_path: Path) -> None:
    cell = tmp_path / "cell.py"
    cell.write_text("def double(given):\n    return 2 * given\n")
    defined: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell.read_text(), cell, "exec"), defined)  # noqa: S102 - as a notebook runs its cells
    text = cell.read_text()
    arrived = pickle.loads(pickled(_JitFunction(defined["double"], version=3)))
    assert (arrived.fn(4), arrived.version) == (8, 3)
    assert arrived.source == text


@pytest.fixture
def named_kernel(monkeypatch: pytest.MonkeyPatch) -> _JitFunction:
    kernel = _JitFunction(_named_kernel)
    monkeypatch.setattr(sys.modules[__name__], "_named_kernel", kernel)  # as a decorator does
    return kernel


def _named_kernel(given: int) -> int:
    return given


def test_kernels_of_a_module_go_by_name(named_kernel: _JitFunction) -> None:
    assert pickle.loads(pickled(named_kernel)) is named_kernel


def test_kernels_of_a_module_that_goes_by_value_are_made_again(named_kernel: _JitFunction) -> None:
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        arrived = pickle.loads(pickled(named_kernel))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert arrived is not named_kernel
    assert arrived.fn(3) == 3


_OPERATOR_IN_A_SCRIPT = """
import sys
import torch
from memplan.children.pickling import pickled


@torch.library.custom_op("memplan_script::halved", mutates_args=())
def halved(values: torch.Tensor) -> torch.Tensor:
    return values / 2


@halved.register_kernel("cuda")
def _(values):
    return values


halved.register_fake(lambda values: torch.empty_like(values))
halved.register_autograd(lambda ctx, gradient: halved(gradient * ctx.factor), setup_context=lambda ctx, **_: keep(ctx))


def keep(ctx):
    ctx.factor = 3


def call(values):
    return halved(values) + torch.ops.memplan_script.halved(values) + torch.ops.memplan_script.halved.default(values)


sys.stdout.buffer.write(pickled(call))
"""


def test_an_operator_of_a_script_is_defined_again() -> None:
    command = [sys.executable, "-c", _OPERATOR_IN_A_SCRIPT]
    call = pickle.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    values = torch.ones(4, requires_grad=True)
    result = call(values)
    assert result.tolist() == 4 * [1.5]
    result.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == 4 * [3 * 3 / 2]  # half of three times one, of each of three calls
    again = pickle.loads(pickled(call))
    assert again(torch.zeros(4)).tolist() == 4 * [0.0]


def test_an_operator_of_a_module_is_found_there() -> None:
    from tests.unit.estimators.recorder.test_custom_operators import tripled  # noqa: PLC0415 - defines operators

    assert pickle.loads(pickled([tripled]))[0] is tripled
