"""What cuDNN answers for a described card is what its convolutions take on the card itself."""

from __future__ import annotations

import pytest
import torch

from memplan.devices.resolving import resolve_device
from memplan.estimators.allocators.allocator_config import UNIT_BYTES
from memplan.estimators.cudnn.asking import CudnnAnswers, CudnnQuestions, ask
from memplan.estimators.temporaries.convolutions import Convolution, Pass
from tests.convolution_calls import square_call

pytestmark = pytest.mark.gpu

_AMPERE = (8, 0)
_SHAPES = [  # batch, channels in, side, channels out, window, stride
    (32, 64, 56, 64, 3, 1),
    (32, 256, 56, 64, 1, 1),
    (32, 256, 56, 512, 1, 2),
    (8, 512, 14, 512, 3, 1),
    (16, 3, 224, 64, 7, 2),
]
# Others, since PyTorch searches once for what it has not run yet.
_SEARCHED_SHAPES = [(24, 64, 56, 64, 3, 1), (24, 256, 56, 64, 1, 1), (12, 3, 224, 64, 7, 2)]
_MASKS = {Pass.INPUT_GRADIENT: [True, False, False], Pass.WEIGHT_GRADIENT: [False, True, False]}


def multiprocessors() -> int:
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


@pytest.mark.parametrize("shape", _SHAPES, ids=str)
@pytest.mark.parametrize("kernel", list(Pass))
@pytest.mark.parametrize(
    ("dtype", "channels_last"), [("float32", False), ("float16", False), ("bfloat16", True)], ids=str
)
def test_the_workspace_is_the_one_that_was_answered(
    shape: tuple[int, ...], kernel: Pass, dtype: str, channels_last: bool
) -> None:
    call = square_call(shape, kernel, dtype, channels_last=channels_last)
    found = answers(CudnnQuestions(capability=capability_for(dtype), sm_count=multiprocessors(), convolutions=(call,)))
    (answered,) = found.workspace_bytes
    assert answered is not None
    # what cuBLASLt's engines add is less than a block
    assert 0 <= workspace_on_card(call) - answered < UNIT_BYTES


@pytest.mark.parametrize("shape", _SEARCHED_SHAPES, ids=str)
@pytest.mark.parametrize("kernel", list(Pass))
@pytest.mark.parametrize(
    ("dtype", "channels_last"), [("float32", False), ("float16", False), ("bfloat16", True)], ids=str
)
def test_in_benchmark_mode_the_first_call_takes_the_largest_workspace_that_was_proposed(
    shape: tuple[int, ...], kernel: Pass, dtype: str, channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    call = square_call(shape, kernel, dtype, channels_last=channels_last)
    found = answers(
        CudnnQuestions(capability=capability_for(dtype), sm_count=multiprocessors(), convolutions=(), searched=(call,))
    )
    (answered,) = found.search_bytes
    assert answered is not None
    if 2 * answered > torch.cuda.mem_get_info()[0]:
        pytest.skip("the card has no room for the search")
    assert 0 <= workspace_on_card(call) - answered < UNIT_BYTES


def capability_for(dtype: str) -> tuple[int, int]:
    """Return the card's compute capability; skip where cuDNN has no kernels for the type there."""
    capability = resolve_device("cuda:0").compute_capability
    assert capability is not None
    if dtype == "bfloat16" and capability < _AMPERE:
        pytest.skip("no convolutions in bfloat16 before Ampere")
    return capability


def answers(questions: CudnnQuestions) -> CudnnAnswers:
    found = ask(questions)
    if not isinstance(found, CudnnAnswers):
        pytest.skip(f"cuDNN cannot be asked here: {found}")
    return found


def workspace_on_card(call: Convolution) -> int:
    """Return the bytes requested while the kernel ran that were given back when it had."""
    layout = torch.channels_last if call.channels_last else torch.contiguous_format
    image, weight, gradient = (
        torch.zeros(each, dtype=getattr(torch, call.dtype), device="cuda").contiguous(memory_format=layout)
        for each in (call.input_shape, call.weight_shape, call.output_shape)
    )
    window = (list(call.stride), list(call.padding), list(call.dilation), False, [0, 0], 1)
    torch.cuda.reset_peak_memory_stats()
    if call.kernel is Pass.FORWARD:
        kept = torch.ops.aten.convolution(image, weight, None, *window)
    else:
        kept = torch.ops.aten.convolution_backward(gradient, image, weight, None, *window, _MASKS[call.kernel])
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()  # not the allocated bytes: blocks may be up to 1 MiB larger than requests
    workspace: int = stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"]
    del kept
    return workspace
