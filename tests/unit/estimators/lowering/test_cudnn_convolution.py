"""Which convolutions cuDNN runs, what is asked about them, and what PyTorch copies around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from memplan.estimators.lowering import cudnn_convolution
from memplan.estimators.lowering.cudnn_convolution import convolution_rules
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes
from memplan.estimators.temporaries.card_generations import Generation
from memplan.estimators.temporaries.convolutions import Convolution, ConvolutionWorkspace, Pass
from memplan.units import MIB
from tests.making import sizes
from tests.tensors import in_channels_last

if TYPE_CHECKING:
    from memplan.estimators.lowering.temporary_bytes import Blocks

AMPERE, HOPPER = Generation.AMPERE, Generation.HOPPER
SINGLE, HALF = torch.float32, torch.float16


def image(channels: int = 64, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    """1 MiB of 64 channels in single precision."""
    return torch.empty(1, channels, 64, 64, dtype=dtype, device="meta")


def weight(groups: int = 1, dtype: torch.dtype = SINGLE, window: int = 8) -> torch.Tensor:
    """1 MiB, for 64 channels in and out in single precision, by windows of 8 x 8."""
    return torch.empty(64, 64 // groups, window, window, dtype=dtype, device="meta")


def forward(
    pixels: torch.Tensor,
    kernel: torch.Tensor,
    *,
    groups: int = 1,
    stride: int = 1,
    generation: Generation = AMPERE,
    result: torch.Tensor | None = None,
    transposed: bool = False,
) -> TemporaryBytes:
    rule = convolution_rules(generation)["aten.convolution"]
    made = image(dtype=pixels.dtype) if result is None else result
    return rule((pixels, kernel, None, [stride], [0], [1], transposed, [0], groups), made)


def backward(
    pixels: torch.Tensor,
    kernel: torch.Tensor,
    gradient: torch.Tensor,
    wanted: tuple[bool, bool] = (True, True),
    generation: Generation = AMPERE,
) -> TemporaryBytes:
    rule = convolution_rules(generation)["aten.convolution_backward"]
    return rule((gradient, pixels, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [*wanted, False]), None)


def asked(blocks: Blocks) -> Convolution:
    """The call that cuDNN is asked about, whose workspace is the last of the blocks."""
    workspace = blocks[-1]
    assert isinstance(workspace, ConvolutionWorkspace)
    return workspace.call


@pytest.fixture(autouse=True)
def _expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel is expected to take 3 MiB, and nothing where channels lie last."""
    monkeypatch.setattr(
        cudnn_convolution, "workspace_bytes", lambda call, generation: 0 if call.channels_last else 3 * MIB
    )


def test_every_kernel_takes_what_is_expected_of_it() -> None:
    assert sizes(forward(image(), weight()).after_results) == (3 * MIB,)
    found = backward(image(), weight(), image())
    assert sizes(found.between_results) == sizes(found.after_results) == (3 * MIB,)


@pytest.mark.parametrize(
    ("pixels", "kernel", "groups"),
    [
        (image(channels=3), torch.empty(64, 3, 8, 8, device="meta"), 1),
        (image(dtype=torch.float64), weight(dtype=torch.float64), 1),
        (image(), weight(groups=8), 8),
        (image(), weight(window=1), 1),
    ],
    ids=["a photograph", "double precision", "groups", "a plain product"],
)
def test_what_a_call_is_asked_about(pixels: torch.Tensor, kernel: torch.Tensor, groups: int) -> None:
    call = asked(forward(pixels, kernel, groups=groups).after_results)
    assert (call.input_shape, call.weight_shape) == (tuple(pixels.shape), tuple(kernel.shape))
    assert call.dtype == str(pixels.dtype).removeprefix("torch.")
    assert call.with_tf32


def test_where_nothing_may_be_rounded_the_call_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert not asked(forward(image(), weight()).after_results).with_tf32


def test_in_benchmark_mode_the_first_proposal_stands_for_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    proposed = forward(image(), weight())
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert forward(image(), weight()) == proposed


def test_only_wanted_gradients_have_a_workspace() -> None:
    found = backward(image(), weight(), image(), wanted=(False, True))
    assert found.between_results == ()
    assert asked(found.after_results).kernel is Pass.WEIGHT_GRADIENT


def test_one_channel_at_a_time_is_no_business_of_cudnns_unless_channels_are_last() -> None:
    kernel = torch.empty(64, 1, 3, 3, device="meta")
    assert forward(image(), kernel, groups=64) == NO_TEMPORARIES
    assert asked(forward(in_channels_last(image()), kernel, groups=64).after_results)
    assert asked(forward(image(dtype=HALF), kernel.half(), groups=64).after_results)
    some_channels = in_channels_last(image(128))[:, :64]  # neither contiguous nor dense, but as if channels-last
    assert asked(forward(some_channels, kernel, groups=64).after_results)
    assert forward(image(dtype=torch.complex64), weight(dtype=torch.complex64)) == NO_TEMPORARIES


def test_no_samples_are_not_convolved() -> None:
    assert forward(image()[:0], weight(), result=image()[:0]) == NO_TEMPORARIES
    assert backward(image()[:0], weight(), image()[:0]) == NO_TEMPORARIES


def test_the_call_is_what_cudnn_is_asked_about() -> None:
    call = Convolution(
        kernel=Pass.WEIGHT_GRADIENT,
        input_shape=(1, 64, 64, 64),
        weight_shape=(64, 64, 1, 1),
        output_shape=(1, 64, 64, 64),
        dtype="float16",
        channels_last=False,
        stride=(1, 1),
        padding=(0, 0),
        dilation=(1, 1),
    )
    found = backward(image(dtype=HALF), weight(dtype=HALF, window=1), image(dtype=HALF))
    assert asked(found.after_results) == call


def test_a_transposed_convolution_is_the_gradient_of_another_ones_input() -> None:
    small, large = torch.empty(1, 64, 32, 32, device="meta"), image(channels=32)
    kernel = torch.empty(64, 32, 2, 2, device="meta")
    call = asked(forward(small, kernel, stride=2, result=large, transposed=True).after_results)
    assert (call.kernel, call.input_shape, call.output_shape) == (
        Pass.INPUT_GRADIENT,
        (1, 32, 64, 64),
        (1, 64, 32, 32),
    )


def test_a_line_is_a_picture_of_one_row() -> None:
    rule = convolution_rules(AMPERE)["aten.convolution"]
    line, kernel = torch.empty(1, 64, 100, device="meta"), torch.empty(64, 64, 3, device="meta")
    found = rule((line, kernel, None, [2], [1], [1], False, [0], 1), torch.empty(1, 64, 50, device="meta"))
    call = asked(found.after_results)
    assert (call.input_shape, call.weight_shape) == ((1, 64, 1, 100), (64, 64, 1, 3))
    assert (call.stride, call.padding, call.dilation) == ((1, 2), (0, 1), (1, 1))


def test_a_weight_is_converted_once_the_output_exists_and_a_gradient_once_or_for_each_kernel() -> None:
    pixels = in_channels_last(image())
    assert by_lifetime(forward(pixels, weight(), generation=HOPPER)) == ((), (), (MIB,))
    assert by_lifetime(backward(pixels, weight(), image(), generation=HOPPER)) == ((MIB,), (MIB,), ())
    same = image()[:, :1, :1, :1].expand(1, 64, 64, 64)  # the gradient of a sum, which is in no layout
    assert by_lifetime(backward(image(), weight(), same)) == ((), (MIB, 3 * MIB), (MIB, 3 * MIB))


def by_lifetime(found: TemporaryBytes) -> tuple[tuple[int, ...], ...]:
    return sizes(found.throughout), sizes(found.between_results), sizes(found.after_results)


def test_a_gradient_of_lines_whose_channels_are_last_is_converted_once() -> None:
    lines = torch.empty(1, 64, 4096, device="meta")  # 1 MiB
    kernel, last = torch.empty(64, 64, 3, device="meta"), torch.empty(1, 4096, 64, device="meta").transpose(1, 2)
    settings = ([1], [1], [1], False, [0], 1, [True, True, False])
    rule = convolution_rules(AMPERE)["aten.convolution_backward"]
    assert rule((lines, lines, kernel, None, *settings), None).throughout == ()
    assert rule((last, lines, kernel, None, *settings), None).throughout == (MIB,)
    found = rule((last, last, kernel, None, *settings), None)
    assert (found.until_return, found.throughout) == ((MIB,), (MIB,))  # beside the sum for the bias, and not
