"""What oneDNN copies inside convolutions, held against the CPU allocator's own events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memplan.estimators.lowering.kernel_rules import host_kernels
from tests.host_allocations import measured_peak_bytes
from tests.making import sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.estimators.lowering.temporary_bytes import TemporaryBytes

SMALL_BYTES = 512 * 1024  # scratch pads and reductions by threads, which are not counted


class Rules(TorchDispatchMode):
    """Collects what the rules say of the convolutions that run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[TemporaryBytes, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket)
        if "convolution" in name:
            results = [each for each in (result if isinstance(result, tuple) else [result]) if each is not None]
            self.found.append(
                (host_kernels().temporary_bytes(name, args, result), sum(each.nbytes for each in results))
            )
        return result


needs_avx512 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="the measured layouts are AVX-512's"
)


@needs_avx512
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("channels_in", "channels_out", "groups"), [(24, 48, 1), (64, 64, 1), (64, 64, 64), (40, 40, 40)]
)
def test_the_peak_inside_a_convolution_and_its_backward_is_predicted(
    layout: torch.memory_format, channels_in: int, channels_out: int, groups: int
) -> None:
    check_convolution(layout, channels_in, channels_out, groups, side=64)


@needs_avx512
@pytest.mark.parametrize(
    ("precision", "groups"),
    [(torch.float32, 1), (torch.float32, 64), (torch.bfloat16, 1), (torch.bfloat16, 64), (torch.float16, 64)],
)
def test_the_peak_inside_a_convolution_that_moves_by_two_is_predicted(precision: torch.dtype, groups: int) -> None:
    convolution = torch.nn.Conv2d(64, 64, 3, 2, padding=1, groups=groups).to(precision)
    image, gradient = torch.randn(8, 64, 128, 128), torch.randn(8, 64, 64, 64)
    check(convolution, image.to(precision), gradient.to(precision), small_bytes=3 * SMALL_BYTES)


@pytest.mark.skipif(torch.ops.mkldnn._is_mkldnn_fp16_supported(), reason="the processor has kernels of float16")
@pytest.mark.parametrize(("groups", "stride", "dilation"), [(1, 1, 1), (4, 2, 1), (64, 1, 1), (1, 1, 2)])
def test_float16_is_unfolded_group_by_group_where_it_has_no_kernels(groups: int, stride: int, dilation: int) -> None:
    convolution = torch.nn.Conv2d(64, 64, 3, stride, padding=dilation, dilation=dilation, groups=groups).half()
    gradient = torch.randn(2, 64, 64 // stride, 64 // stride).half()
    check(convolution, torch.randn(2, 64, 64, 64).half(), gradient)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@needs_avx512
@pytest.mark.usefixtures("threads")
def test_patches_are_unfolded_by_each_thread() -> None:
    check(torch.nn.Conv2d(3, 768, 16, 16), torch.randn(2, 3, 64, 64), torch.randn(2, 768, 4, 4))


@needs_avx512
@pytest.mark.parametrize(
    ("dilation", "stride", "side"),
    [(6, 1, 6), (2, 2, 8), (2, 1, 6)],
    ids=["higher than the image", "moving by two", "within the image"],
)
def test_what_a_dilated_window_unfolds_is_predicted(dilation: int, stride: int, side: int) -> None:
    convolution = torch.nn.Conv2d(256, 256, 3, stride, padding=dilation, dilation=dilation)  # 2.25 MiB
    check(convolution, torch.randn(4, 256, side, side), torch.randn(4, 256, side // stride, side // stride))


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX2", reason="AVX-512 has a kernel for them")
@pytest.mark.parametrize(("window", "height", "width"), [(3, 2, 2), (3, 2, 8), (3, 8, 2), (3, 3, 3), (5, 4, 4)])
def test_with_avx2_windows_higher_than_the_image_are_unfolded(window: int, height: int, width: int) -> None:
    convolution = torch.nn.Conv2d(256, 256, window, padding=window // 2)  # 2.25 MiB, or 6.25
    check(convolution, torch.randn(8, 256, height, width), torch.randn(8, 256, height, width))


@needs_avx512
@pytest.mark.parametrize("dilation", [1, 2])
def test_the_channels_of_groups_are_not_filled_up(dilation: int) -> None:
    convolution = torch.nn.Conv2d(2048, 2048, 5, padding=2 * dilation, dilation=dilation, groups=2048)  # 200 KiB
    check(convolution, torch.randn(4, 2048, 8, 8), torch.randn(4, 2048, 8, 8))


@needs_avx512
def test_dilated_windows_of_single_channels_are_unfolded() -> None:
    convolution = torch.nn.Conv2d(64, 64, 3, padding=2, dilation=2, groups=64)
    check(convolution, torch.randn(8, 64, 64, 64), torch.randn(8, 64, 64, 64))


@needs_avx512
@pytest.mark.parametrize(("depth", "dilation"), [(2, 1), (4, 1), (8, 2)])
def test_windows_deeper_than_the_volume_and_those_dilated_in_depth_are_unfolded(depth: int, dilation: int) -> None:
    convolution = torch.nn.Conv3d(128, 128, 3, padding=dilation, dilation=dilation)  # 1.7 MiB
    check(convolution, torch.randn(2, 128, depth, 8, 8), torch.randn(2, 128, depth, 8, 8))


@needs_avx512
@pytest.mark.usefixtures("threads")
def test_windows_in_depth_alone_are_unfolded_on_one_thread() -> None:
    convolution = torch.nn.Conv3d(64, 64, (3, 1, 1), padding=(1, 0, 0))
    check(convolution, torch.randn(8, 64, 4, 32, 32), torch.randn(8, 64, 4, 32, 32))  # 8 MiB and 24 MiB


@needs_avx512
def test_the_gradient_of_a_weight_larger_than_the_image_is_there_twice() -> None:
    check_convolution(torch.contiguous_format, 256, 256, groups=1, side=3)  # 2.25 MiB beside 72 KiB


@needs_avx512
def test_the_gradient_of_a_weight_in_channels_last_is_there_three_times() -> None:
    check_convolution(torch.channels_last, 256, 256, groups=1, side=3)


@needs_avx512
@pytest.mark.parametrize(
    ("channels_in", "channels_out", "groups", "side"),
    [(256, 512, 256, 8), (512, 512, 128, 8), (512, 512, 512, 8), (512, 512, 512, 2)],
)
def test_a_group_in_channels_last_fills_vectors(channels_in: int, channels_out: int, groups: int, side: int) -> None:
    check_convolution(torch.channels_last, channels_in, channels_out, groups, side=side)  # 16 x 16 elements a group


@needs_avx512
@pytest.mark.parametrize("channels", [(16, 3), (8, 64), (32, 32), (16, 4)])
def test_the_peak_inside_a_transposed_convolution_and_its_backward_is_predicted(channels: tuple[int, int]) -> None:
    convolution = torch.nn.ConvTranspose2d(*channels, 2, 2)
    check(convolution, torch.randn(8, channels[0], 64, 64), torch.randn(8, channels[1], 128, 128))


def check_convolution(
    layout: torch.memory_format, channels_in: int, channels_out: int, groups: int, *, side: int
) -> None:
    convolution = torch.nn.Conv2d(channels_in, channels_out, 3, padding=1, groups=groups).to(memory_format=layout)
    image = torch.randn(8, channels_in, side, side).contiguous(memory_format=layout)
    check(convolution, image, torch.randn(8, channels_out, side, side).contiguous(memory_format=layout))


def check(
    convolution: torch.nn.Conv2d | torch.nn.Conv3d | torch.nn.ConvTranspose2d,
    image: torch.Tensor,
    gradient: torch.Tensor,
    *,
    small_bytes: int = SMALL_BYTES,
) -> None:
    image.requires_grad_()
    with Rules() as rules:
        torch.autograd.grad(convolution(image), [image, convolution.weight, convolution.bias], gradient)
    predicted = [
        max(
            sum(sizes(temporaries.around_results + temporaries.before_results)),
            sum(sizes(temporaries.around_results + temporaries.between_results)) + results,
            sum(sizes(temporaries.after_results)) + results,
        )
        for temporaries, results in rules.found
    ]
    result = convolution(image)
    wanted = [image, convolution.weight, convolution.bias]
    measured = [
        measured_peak_bytes(lambda: convolution(image)),
        measured_peak_bytes(lambda: torch.autograd.grad(result, wanted, gradient)),
    ]
    assert predicted == pytest.approx(measured, abs=small_bytes)
