"""Results on fake tensors that are laid out as the kernel's are."""

from __future__ import annotations

import pytest
import torch
from torch._prims_common import suggest_memory_format

from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.fake_tensors.fake_results import corrected_result

FORWARD = torch.ops.aten.native_batch_norm.default
BACKWARD = torch.ops.aten.native_batch_norm_backward.default
REORDERED = [((0, 2, 1), (4, 6, 8)), ((0, 2, 3, 1), (4, 6, 8, 5)), ((1, 0), (4, 6))]


@pytest.mark.parametrize(("order", "shape"), REORDERED)
def test_batch_norm_on_the_cpu_is_laid_out_as_by_the_kernel(order: tuple[int, ...], shape: tuple[int, ...]) -> None:
    image = torch.randn(shape).permute(order)
    weight = torch.ones(image.shape[1])
    forward = (image, weight, weight, None, None, True, 0.1, 1e-5)
    made = FORWARD(*forward)
    backward = (made[0], image, weight, None, None, made[1], made[2], True, 1e-5, [True, True, True])
    fakes = TraceFakeMode()
    for operator, args in ((FORWARD, forward), (BACKWARD, backward)):
        faked = tuple(fakes.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in args)
        with fakes:
            results = corrected_result(operator, faked, on_host=True)
        assert [each.stride() for each in results] == [each.stride() for each in operator(*args)]
        with fakes:
            on_card = corrected_result(operator, faked, on_host=False)
        if operator is FORWARD:
            assert on_card is None
        else:  # as ATen's own kernel had it on a stub
            assert on_card[0].is_contiguous(memory_format=suggest_memory_format(image))


def test_batch_norm_of_single_pixels_which_lie_in_both_orders_is_contiguous() -> None:
    image, weight = torch.randn(4, 1, 1, 8).permute(0, 3, 1, 2), torch.ones(8)
    settings = (weight, weight, None, None, True, 0.1, 1e-5)
    fakes = TraceFakeMode()
    with fakes:
        faked = corrected_result(FORWARD, (fakes.from_tensor(image), *settings), on_host=True)[0]
    assert image.stride() == (8, 1, 8, 8)
    assert faked.stride() == FORWARD(image, *settings)[0].stride() == (8, 1, 1, 1)


def test_batch_norm_keeps_channels_last() -> None:
    image = torch.zeros(4, 6, 8, 5).permute(0, 3, 1, 2)
    assert corrected_result(FORWARD, (image, None, None, None, None, True, 0.1, 1e-5), on_host=True) is None


def test_grouped_products_of_any_type_have_a_shape() -> None:
    offsets = torch.tensor([3, 8])
    with TraceFakeMode():
        tokens, slopes, weights = torch.empty(8, 16), torch.empty(8, 32), torch.empty(2, 16, 32)
        operands = ((weights.mT, weights), (tokens, weights, offsets), (tokens.t(), slopes, offsets))
        made = [corrected_result(torch.ops.aten._grouped_mm.default, each, on_host=False) for each in operands]
    assert [tuple(each.shape) for each in made] == [(2, 32, 32), (8, 32), (2, 16, 32)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_grouped_products_lie_as_those_that_are_computed(dtype: torch.dtype) -> None:
    offsets = torch.tensor([3, 8], dtype=torch.int32)
    tokens, slopes, weights = (torch.zeros(size, dtype=dtype) for size in ((8, 16), (8, 48), (2, 16, 48)))
    for left, right, ends in (
        (weights.mT, weights[..., :30], None),
        (tokens, weights[..., :30], offsets),
        (tokens.t(), slopes[:, :30], offsets),
    ):
        fakes = TraceFakeMode()
        given = [None if each is None else fakes.from_tensor(each) for each in (left, right, ends)]
        with fakes:
            made = corrected_result(torch.ops.aten._grouped_mm.default, given, on_host=True)
        computed = torch.ops.aten._grouped_mm(left, right, ends)
        assert (made.shape, made.stride(), made.dtype) == (computed.shape, computed.stride(), dtype)


@pytest.mark.parametrize(("dtype", "is_corrected"), [(torch.bfloat16, True), (torch.float32, False)])
def test_statistics_of_half_types_are_single_precision_on_a_card(dtype: torch.dtype, *, is_corrected: bool) -> None:
    with TraceFakeMode():
        values, image = torch.empty(4, 6, 8, dtype=dtype), torch.empty(4, 6, 8, 8, dtype=dtype)
        layers = corrected_result(
            torch.ops.aten.native_layer_norm.default, (values, [8], None, None, 1e-5), on_host=False
        )
        batches = corrected_result(FORWARD, (image, None, None, None, None, True, 0.1, 1e-5), on_host=False)
    if not is_corrected:
        assert layers is None
        assert batches is None
        return
    assert [(each.shape, each.dtype) for each in layers] == [
        ((4, 6, 8), dtype), ((4, 6, 1), torch.float32), ((4, 6, 1), torch.float32),
    ]  # fmt: skip
    assert [(each.shape, each.dtype) for each in batches] == [
        ((4, 6, 8, 8), dtype), ((6,), torch.float32), ((6,), torch.float32),
    ]  # fmt: skip


def test_the_logarithm_of_sigmoid_keeps_nothing_on_a_card() -> None:
    with TraceFakeMode():
        values = torch.empty(4, 6)
        made, kept = corrected_result(torch.ops.aten.log_sigmoid_forward.default, (values,), on_host=False)
    assert (made.shape, kept.numel()) == ((4, 6), 0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
@pytest.mark.parametrize(
    ("pad", "on_host"), [("reflection", False), ("reflection", True), ("replication", True)], ids=str
)
def test_padded_images_lie_as_images_do_on_the_host_and_in_order_on_a_card(
    pad: str, *, on_host: bool, layout: torch.memory_format
) -> None:
    forward, backward = (getattr(torch.ops.aten, f"{pad}_pad2d{suffix}").default for suffix in ("", "_backward"))
    expected = layout if on_host else torch.contiguous_format
    with TraceFakeMode():
        image = torch.empty(2, 4, 8, 8).to(memory_format=layout)
        padded = corrected_result(forward, (image, [1, 1, 1, 1]), on_host=on_host)
        for gradient in (padded, padded.contiguous()):
            found = corrected_result(backward, (gradient, image, [1, 1, 1, 1]), on_host=on_host)
            assert (found.shape, found.is_contiguous(memory_format=expected)) == ((2, 4, 8, 8), True)
    assert (padded.shape, padded.is_contiguous(memory_format=expected)) == ((2, 4, 10, 10), True)


def test_the_gradient_of_normalised_images_lies_as_they_do_on_a_card() -> None:
    with TraceFakeMode():
        image, weight, of_groups = torch.empty(4, 6, 8, 8), torch.empty(6), torch.empty(4, 2)
        gradient = image.to(memory_format=torch.channels_last)
        calls = {
            BACKWARD: (weight, None, None, weight, weight, True, 1e-5, [True, True, True]),
            torch.ops.aten.native_group_norm_backward.default: (
                *(of_groups, of_groups, weight, 4, 6, 64, 2, [True, True, True]),
            ),
        }
        for operator, settings in calls.items():
            found = corrected_result(operator, (gradient, image, *settings), on_host=False)[0]
            assert found.stride() == image.stride() != gradient.stride()
            assert corrected_result(operator, (image, image, *settings), on_host=False) is None


def test_the_gradient_of_a_normalised_layer_is_contiguous_on_a_card() -> None:
    with TraceFakeMode():
        values, weight, kept = torch.empty(8, 8), torch.empty(8), torch.empty(8, 1)
        for normalised in (values, values.t()):
            args = (values.t(), normalised, [8], kept, kept, weight, weight, [True, True, True])
            found = corrected_result(torch.ops.aten.native_layer_norm_backward.default, args, on_host=False)[0]
            assert found.stride() == (8, 1)


@pytest.mark.parametrize("mode", [0, 1])
def test_bags_remember_on_a_card_where_each_index_is(mode: int) -> None:
    with TraceFakeMode():
        table, indices, bags = torch.empty(16, 8), torch.empty(40, dtype=torch.long), torch.empty(4, dtype=torch.long)
        args = (table, indices, bags, False, mode)
        made = corrected_result(torch.ops.aten._embedding_bag.default, args, on_host=False)
    assert [each.shape for each in made[:2]] == [(4, 8), (40,)]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_a_card_makes_histograms_of_any_type(dtype: torch.dtype) -> None:
    with TraceFakeMode():
        chosen = torch.empty(64, dtype=dtype)
        counts = corrected_result(torch.ops.aten.histc.default, (chosen, 8, 0, 8), on_host=False)
        assert corrected_result(torch.ops.aten.histc.default, (chosen, 8, 0, 8), on_host=True) is None
    assert (counts.shape, counts.dtype) == ((8,), dtype)
