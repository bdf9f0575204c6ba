"""What operators of mmcv allocate, as its own code on the host does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memplan.estimators.absent_card.mmcv_operators import MMCV_OPERATORS
from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode

IMAGES, WEIGHT, OUTPUT = (4, 8, 16, 16), (32, 8, 3, 3), (4, 32, 16, 16)
COLUMNS_OF_ONE = (8 * 9, 256)
EMPTY = (0,)


class Making(TorchDispatchMode):
    """Keeps the shapes of storages that operators make."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {id(each.untyped_storage()) for each in args if isinstance(each, torch.Tensor)}
        if isinstance(result, torch.Tensor) and id(result.untyped_storage()) not in known:
            self.shapes.append(tuple(result.shape))
        return result


def made_by(name: str, *shapes: tuple[int, ...], **settings: Any) -> list[tuple[int, ...]]:
    with TraceFakeMode():
        tensors = [torch.empty(each) for each in shapes]
        with Making() as making:
            assert MMCV_OPERATORS[name](*tensors, **settings) is None
    return making.shapes


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_a_deformable_convolution_unfolds_some_images_at_once(group: int, at_once: int) -> None:
    settings = {"group": group, "im2col_step": at_once}
    weight = (32, 8 // group, 3, 3)
    columns = (8 * 9, at_once * 256)
    forward = made_by("deform_conv_forward", IMAGES, weight, EMPTY, OUTPUT, EMPTY, EMPTY, **settings)
    assert forward == [columns, (16, 16), (4 // at_once, 32, at_once, 16, 16)]
    of_input = made_by("deform_conv_backward_input", IMAGES, EMPTY, OUTPUT, IMAGES, EMPTY, weight, EMPTY, **settings)
    reordered = [] if at_once == 1 else group * [(32 // group, at_once, 16, 16)]
    assert of_input == [columns, *reordered]
    of_weight = made_by(
        "deform_conv_backward_parameters", IMAGES, EMPTY, OUTPUT, weight, EMPTY, EMPTY, scale=1, **settings
    )
    assert of_weight == [columns, *(1 if at_once == 1 else 2) * [OUTPUT]]


def test_a_modulated_one_unfolds_one_image_after_the_other() -> None:
    given = (IMAGES, WEIGHT, (32,), EMPTY, EMPTY, EMPTY)
    forward = made_by("modulated_deform_conv_forward", *given, OUTPUT, EMPTY, group=1, with_bias=True)
    assert forward == [(16, 16), COLUMNS_OF_ONE]
    backward = made_by(
        "modulated_deform_conv_backward", *given, EMPTY, IMAGES, WEIGHT, (32,), EMPTY, EMPTY, OUTPUT, group=1
    )
    assert backward == [(16, 16), COLUMNS_OF_ONE]


def test_boxes_are_suppressed_by_one_bit_for_each_pair() -> None:
    boxes, scores = torch.rand(130, 4), torch.rand(130) + 0.1
    with Making() as making:
        kept = MMCV_OPERATORS["nms"](boxes, scores, iou_threshold=0.5, offset=0)
    assert kept.shape == (130,)
    assert (130, 3) in making.shapes


def test_losses_and_pooled_regions_make_nothing() -> None:
    for name in ("sigmoid_focal_loss_forward", "roi_align_backward", "ms_deform_attn_backward"):
        assert made_by(name, IMAGES, OUTPUT, gamma=2.0) == []
