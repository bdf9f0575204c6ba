"""What convolutions of compiled code read, and in which memory format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

if TYPE_CHECKING:
    from torch import fx

pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method:DeprecationWarning"
)  # of what Inductor imports

IMAGES = torch.ones(2, 64, 4, 4)


def _laid_out(kernels: torch.Tensor) -> fx.Graph:
    from memplan.estimators.lowering.inductor_layouts import prefer_channels_last  # noqa: PLC0415 - imports Inductor

    captured = make_fx(lambda x, y: (functional.conv2d(x.sin(), y), y), tracing_mode="fake")(IMAGES, kernels)
    prefer_channels_last(captured, is_inference=False)
    return captured.graph


def test_weights_are_copied_and_what_kernels_write_is_laid_out_from_the_start() -> None:
    from memplan.estimators.lowering.inductor_layouts import in_preferred_layout  # noqa: PLC0415 - imports Inductor

    graph = _laid_out(torch.ones(128, 64, 1, 1))
    (copy,) = graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert copy.kwargs == {"memory_format": torch.channels_last}
    assert copy in graph.find_nodes(op="output")[0].all_input_nodes  # what the backward pass is given
    (sine,) = graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    laid_out = in_preferred_layout(sine, IMAGES)
    assert laid_out.is_contiguous(memory_format=torch.channels_last)
    assert laid_out.untyped_storage().data_ptr() == IMAGES.untyped_storage().data_ptr()
    assert in_preferred_layout(copy, IMAGES) is IMAGES


def test_few_channels_do_not_pay() -> None:
    graph = _laid_out(torch.ones(64, 64, 1, 1))
    assert not graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)


@pytest.mark.parametrize(
    ("windows", "copies"),
    [
        pytest.param((64, 1, 3, 3), 1, id="depthwise"),
        pytest.param((64, 1, 1, 1), 0, id="of one pixel, whose strides have no order"),
        pytest.param((64, 64, 3, 3), 0, id="dense"),
    ],
)
def test_what_depthwise_convolutions_read_backwards_is_copied_to_rows_of_each_channel(
    windows: tuple[int, ...], copies: int
) -> None:
    from memplan.estimators.lowering.inductor_layouts import (  # noqa: PLC0415 - imports Inductor
        in_preferred_layout,
        order_by_depthwise_weights,
    )

    settings = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 64 // windows[1], [True, True, False])
    backward = torch.ops.aten.convolution_backward.default
    captured = make_fx(lambda gradient, x, y: backward(gradient, x, y, *settings), tracing_mode="fake")(
        functional.conv2d(IMAGES, torch.ones(windows), padding=1, groups=64 // windows[1]), IMAGES, torch.ones(windows)
    )
    order_by_depthwise_weights(captured)
    found = captured.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert len(found) == copies
    for copy in found:
        channels_last = IMAGES.contiguous(memory_format=torch.channels_last)
        assert in_preferred_layout(copy, channels_last.clone(), (channels_last,)).stride() == (1024, 4, 256, 1)
        assert in_preferred_layout(copy, IMAGES.clone(), (IMAGES,)) is IMAGES
