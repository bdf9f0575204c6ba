"""Operands that CUDA kernels copy into the layout that they read."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES
from memplan.units import KIB, MIB
from tests.tensors import cuda_temporary_bytes, in_channels_last, meta

SMALL, LARGE = meta(4, 64, 32, 32), meta(4, 64, 64, 64)  # 1 and 4 MiB
SAME = meta(1).expand(4, 64, 32, 32)  # the gradient of a sum


@pytest.mark.parametrize(
    "operator", ["avg_pool2d_backward", "max_pool2d_with_indices_backward", "upsample_nearest2d_backward", "col2im"]
)
def test_the_gradient_of_a_sum_is_written_out_once_the_result_exists(operator: str) -> None:
    assert cuda_temporary_bytes(f"aten.{operator}", (SAME, LARGE), LARGE).after_results == (MIB,)
    assert cuda_temporary_bytes(f"aten.{operator}", (SMALL, LARGE), LARGE) == NO_TEMPORARIES


def test_pooling_reads_the_gradient_as_the_image_lies_and_resampling_as_it_lies_itself() -> None:
    image = in_channels_last(LARGE)
    assert cuda_temporary_bytes("aten.avg_pool2d_backward", (SMALL, image), image).after_results == (MIB,)
    assert cuda_temporary_bytes("aten.avg_pool2d_backward", (in_channels_last(SMALL), image), image) == NO_TEMPORARIES
    assert cuda_temporary_bytes("aten.upsample_nearest2d_backward", (SMALL, [64, 64]), image) == NO_TEMPORARIES


def test_the_largest_of_each_part_are_found_in_contiguous_images() -> None:
    image, values, places = meta(4, 64, 64, 64), meta(4, 64, 8, 8), meta(4, 64, 8, 8, dtype=torch.int64)
    forward, backward = "aten.adaptive_max_pool2d", "aten.adaptive_max_pool2d_backward"
    assert cuda_temporary_bytes(forward, (image, [8, 8]), (values, places)) == NO_TEMPORARIES
    assert cuda_temporary_bytes(backward, (values, image, places), image) == NO_TEMPORARIES
    image, values, places = (in_channels_last(each) for each in (image, values, places))
    found = cuda_temporary_bytes(forward, (image, [8, 8]), (values, places)).after_results
    assert found == (64 * KIB, 128 * KIB, 4 * MIB)
    assert cuda_temporary_bytes(backward, (values, image, places), image).after_results == found


def test_pooling_and_padding_read_contiguous_volumes() -> None:
    volume = meta(4, 16, 16, 32, 32).to(memory_format=torch.channels_last_3d)  # 4 MiB
    pooled = meta(4, 16, 8, 16, 16)
    for operator in ("avg_pool3d", "adaptive_max_pool3d", "reflection_pad3d"):
        assert cuda_temporary_bytes(f"aten.{operator}", (volume, [2, 2, 2]), pooled).after_results == (4 * MIB,)
        assert cuda_temporary_bytes(f"aten.{operator}", (volume.contiguous(), [2]), pooled) == NO_TEMPORARIES
    assert cuda_temporary_bytes("aten._adaptive_avg_pool3d", (volume, [8]), pooled).around_results == (4 * MIB,)
    assert cuda_temporary_bytes("aten.reflection_pad2d", (in_channels_last(LARGE), [1]), LARGE).after_results == (
        4 * MIB,
    )


def test_volumes_are_resampled_in_contiguous_copies_and_pooled_as_they_lie() -> None:
    volume, pooled = meta(4, 16, 16, 32, 32), meta(4, 16, 8, 16, 16)
    in_order = volume.to(memory_format=torch.channels_last_3d)
    resampled = meta(4, 16, 32, 32, 32).to(memory_format=torch.channels_last_3d)
    assert cuda_temporary_bytes("aten.upsample_nearest3d", (in_order, [32]), resampled).after_results == (
        8 * MIB, 4 * MIB,
    )  # fmt: skip
    backward = "aten.max_pool3d_with_indices_backward"
    assert cuda_temporary_bytes(backward, (pooled, in_order), in_order).after_results == (MIB // 2,)
    assert cuda_temporary_bytes(backward, (pooled, volume), volume) == NO_TEMPORARIES


def test_softmax_multiplies_gradient_and_result_before_it_reads_them() -> None:
    result, operator = meta(512, 512), "aten._softmax_backward_data"
    assert cuda_temporary_bytes(operator, (result, result, 1), result).after_results == (MIB,)
    assert cuda_temporary_bytes(operator, (meta(1).expand(512, 512), result, 1), result).after_results == (MIB,)
    assert cuda_temporary_bytes(operator, (result.t(), result, 1), result).after_results == (MIB, MIB)


def test_a_gradient_that_sums_of_softmax_spread_is_multiplied_in_the_order_of_the_result() -> None:
    result, spread = meta(4, 64, 32, 32), meta(4, 64, 1, 1).expand(4, 64, 32, 32)
    backward = cuda_temporary_bytes("aten._softmax_backward_data", (spread, result, 1), result)
    assert backward.after_results == (MIB,)
    last = in_channels_last(result)
    backward = cuda_temporary_bytes("aten._softmax_backward_data", (last, result, 1), result)
    assert backward.after_results == (MIB, MIB)


def test_a_groups_statistics_are_applied_to_each_channel_of_each_sample() -> None:
    image, weight, each_bytes = meta(16, 64, 16), meta(64), 4 * KIB  # 16 * 64 * 4
    args = (image, weight, weight, 16, 64, 16, 4, 1e-5)
    assert cuda_temporary_bytes("aten.native_group_norm", args, None).after_results == (each_bytes, each_bytes)
    backward = (image, image, None, None, weight, 16, 64, 16, 4, [True, True, True])
    of_groups = 16 * 4 * 4
    assert cuda_temporary_bytes("aten.native_group_norm_backward", backward, None).after_results == (
        each_bytes, each_bytes, of_groups, of_groups, each_bytes,
    )  # fmt: skip


def test_groups_of_single_positions_are_summed_likewise() -> None:
    vectors, weight = meta(512, 1024), meta(1024)
    backward = (vectors, vectors, None, None, weight, 512, 1024, 1, 32, [True, True, True])
    assert cuda_temporary_bytes("aten.native_group_norm_backward", backward, None).after_results == (
        2 * MIB, 2 * MIB, 64 * KIB, 64 * KIB,
    )  # fmt: skip


def test_a_groups_gradient_is_copied_to_the_layout_of_the_image() -> None:
    last, sums = in_channels_last(SMALL), (4 * 64 * 4,) * 2

    def backward(gradient: torch.Tensor, image: torch.Tensor) -> object:
        args = (gradient, image, None, None, None, 4, 64, 1024, 64, [True] * 3)
        return cuda_temporary_bytes("aten.native_group_norm_backward", args, None).after_results

    assert backward(SMALL, last) == backward(last, SMALL) == (MIB, *sums, *sums)
    assert backward(last, last) == (*sums, *sums)


def test_what_is_unpooled_is_read_in_order_with_its_places() -> None:
    last = in_channels_last(SMALL)
    places = last.to(torch.int64)
    assert cuda_temporary_bytes("aten.max_unpool2d", (last, places, [64, 64]), LARGE).throughout == (MIB, 2 * MIB)
    assert cuda_temporary_bytes("aten.max_unpool2d", (SMALL, SMALL, [64, 64]), LARGE) == NO_TEMPORARIES


def test_images_are_resampled_smoothly_in_contiguous_copies() -> None:
    last, larger = in_channels_last(SMALL), in_channels_last(LARGE)
    for operator in ("aten._upsample_bilinear2d_aa", "aten._upsample_bicubic2d_aa"):
        assert cuda_temporary_bytes(operator, (last,), larger).after_results == (4 * MIB, MIB)
        assert cuda_temporary_bytes(operator, (SMALL,), LARGE).after_results == ()


def test_columns_are_first_made_as_large_as_the_image() -> None:
    columns = meta(4, 64 * 9, 1024)
    assert cuda_temporary_bytes("aten.im2col", (SMALL,), columns).around_results == (MIB,)
    assert cuda_temporary_bytes("aten.im2col", (SAME,), columns).around_results == (MIB, MIB)
    assert cuda_temporary_bytes("aten.im2col", (LARGE,), meta(4, 64, 256)).around_results == ()


def test_the_gradient_of_a_sum_of_bags_is_written_out_first() -> None:
    bags = meta(1).expand(1024, 256)
    assert cuda_temporary_bytes("aten._embedding_bag_backward", (bags,), None).throughout == (MIB,)


def test_a_normalised_layer_is_copied_before_its_gradient_exists_and_the_results_gradient_after() -> None:
    last, kept = meta(4, 512, 512).transpose(1, 2), meta(4, 512, 1)  # 4 MiB
    args = (SMALL, last, [512], kept, kept, None, None, [True, False, False])
    found = cuda_temporary_bytes("aten.native_layer_norm_backward", args, last)
    assert (found.throughout, found.after_results) == ((4 * MIB,), ())
    found = cuda_temporary_bytes("aten.native_layer_norm_backward", (last, last, *args[2:]), last)
    assert (found.throughout, found.after_results) == ((4 * MIB,), (4 * MIB,))
