"""What torchvision's kernels take inside on a card."""

from __future__ import annotations

from memplan.units import KIB, MIB
from tests.tensors import cuda_temporary_bytes, meta


def test_suppression_compares_each_pair_of_boxes() -> None:
    temporaries = cuda_temporary_bytes("torchvision.nms", (meta(1024, 4), meta(1024), 0.5), None)
    assert temporaries.around_results == (8 * KIB + 16 * KIB + 128 * KIB,)  # positions, boxes, and 1024 * 1024 bits


def test_a_deformable_convolution_lays_out_columns_for_up_to_32_images_at_once() -> None:
    image, weight, output = meta(64, 16, 16, 16), meta(32, 16, 4, 4), meta(64, 32, 16, 16)
    columns_bytes = 16 * 16 * 32 * 256 * 4
    assert columns_bytes == 8 * MIB
    assert cuda_temporary_bytes("torchvision.deform_conv2d", (image, weight), output).around_results == (
        columns_bytes + 4 * MIB,
    )
    backward = cuda_temporary_bytes("torchvision._deform_conv2d_backward", (output, image, weight), None)
    assert backward.after_results == (columns_bytes + 2 * MIB,)


def test_images_are_taken_in_equal_groups() -> None:
    image, weight, output = meta(34, 16, 16, 16), meta(32, 16, 4, 4), meta(34, 32, 16, 16)
    temporaries = cuda_temporary_bytes("torchvision._deform_conv2d_backward", (output, image, weight), None)
    assert temporaries.after_results == (16 * 16 * 17 * 256 * 4 + output.nbytes,)
