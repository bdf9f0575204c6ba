"""The code that Inductor writes for a card that is not there, of graphs small enough to read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch
from torch._subclasses import fake_tensor

from tests.unit.estimators.lowering.inductor_codes import code_of

if TYPE_CHECKING:
    from memplan.estimators.lowering.inductor_code import InductorCode

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method:DeprecationWarning"
)  # of what Inductor imports
SQUARE = torch.ones(64, 64)


def buffers_of(code: InductorCode) -> list[str]:
    """Return the arguments of each buffer that the code makes, in order."""
    return re.findall(r"= empty_strided_cuda\((.*)\)", code.source)


def test_elementwise_operators_are_one_kernel_that_writes_one_buffer() -> None:
    code = code_of(lambda x: (x.sin().cos() * 2,), SQUARE)
    assert buffers_of(code) == ["(64, 64), (64, 1), torch.float32"]
    assert code.source.count("async_compile.triton(") == 1


def test_a_buffer_is_known_by_the_operators_that_make_it() -> None:
    code = code_of(lambda x: (x.sin().cos(),), SQUARE)
    assert [node.target for node in code.makers["buf0"]] == [torch.ops.aten.sin.default, torch.ops.aten.cos.default]


def test_products_write_to_a_buffer_of_the_code() -> None:
    code = code_of(lambda x: (x.sin() @ x,), SQUARE)
    assert "extern_kernels.mm(buf0, x_1, out=buf1)" in code.source


@pytest.mark.parametrize(
    ("sm_count", "kernels"), [pytest.param(1, 1, id="a small card"), pytest.param(108, 2, id="a large card")]
)
def test_sums_are_split_where_the_card_has_multiprocessors_to_share_them(sm_count: int, kernels: int) -> None:
    code = code_of(lambda x: (x.sum(0),), torch.ones(4096, 256), sm_count=sm_count)
    assert len(buffers_of(code)) == kernels


@pytest.mark.parametrize(
    ("channels", "buffers"),
    [
        pytest.param(64, [], id="of few channels"),
        pytest.param(
            128,
            ["(8, 128, 16, 16), (32768, 1, 2048, 128)", "(128, 128, 3, 3), (1152, 1, 384, 128)"],
            id="of many channels",
        ),
    ],
)
def test_convolutions_read_what_lies_channels_last_where_the_card_is_faster_so(
    channels: int, buffers: list[str]
) -> None:
    image, weight = torch.ones(8, channels, 16, 16), torch.ones(channels, channels, 3, 3)
    code = code_of(lambda x, w: (torch.conv2d(x, w).sin(),), image, weight)
    assert buffers_of(code)[:2] == [f"{each}, torch.float32" for each in buffers]


def test_no_card_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        raise AssertionError

    for name in ("init", "_lazy_init", "current_device", "get_device_properties", "get_device_capability"):
        monkeypatch.setattr(torch.cuda, name, asked)
    monkeypatch.setattr(fake_tensor, "init_gpu_context", asked)  # makes a tensor there, once for each device
    code = code_of(lambda x: ((x @ x).sum(0), torch.conv2d(x[None, None], x[None, None, :3, :3])), SQUARE)
    assert buffers_of(code)
