"""Temporaries inside CUDA kernels, by formulas that can be followed in the head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memplan.estimators.lowering import library_workspaces
from memplan.estimators.lowering.library_workspaces import product_workspaces
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES, TemporaryBytes
from memplan.units import KIB, MIB
from tests.making import sizes
from tests.tensors import cuda_temporary_bytes, meta

if TYPE_CHECKING:
    import pytest


def test_an_operator_without_a_rule_hides_nothing() -> None:
    assert cuda_temporary_bytes("aten.relu", (meta(4),), meta(4)) == NO_TEMPORARIES


def test_a_batched_product_copies_an_operand_whose_strides_blas_cannot_take() -> None:
    fitting = meta(4, 64, 64)
    strided = meta(4, 64, 128)[..., ::2]

    def copied(operator: str, *args: object) -> tuple[int, ...]:
        return sizes(cuda_temporary_bytes(operator, args, fitting).after_results)

    assert copied("aten.bmm", fitting, fitting.transpose(1, 2)) == ()
    assert copied("aten.bmm", fitting, strided) == (64 * KIB,)  # 4 * 64 * 64 * 4
    assert copied("aten.bmm", fitting, strided, torch.float32) == (64 * KIB,)
    assert copied("aten.baddbmm", strided, fitting, fitting) == ()


def test_a_column_by_a_row_is_read_as_it_lies_where_pytorch_multiplies_it_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strided = meta(4, 64, 2)[..., ::2].transpose(1, 2)
    args, product = (meta(4, 64, 1), strided[..., ::2]), meta(4, 64, 32)
    for has_outer_products, copies in ((True, ()), (False, (4 * 32 * 4,))):
        monkeypatch.setattr(library_workspaces, "HAS_OUTER_PRODUCTS", has_outer_products)
        assert cuda_temporary_bytes("aten.bmm", args, product).after_results == copies


def test_the_gradient_of_softmax_takes_the_product_of_gradient_and_result() -> None:
    scores = meta(512, 512)
    found = cuda_temporary_bytes("aten._softmax_backward_data", (scores, scores, -1, torch.float32), scores)
    assert found == TemporaryBytes(after_results=(MIB,))
    assert cuda_temporary_bytes("aten._log_softmax_backward_data", (scores, scores, -1), scores) == NO_TEMPORARIES


def test_a_roll_along_several_dimensions_takes_one_after_the_other() -> None:
    image = meta(8, 64, 512)
    assert cuda_temporary_bytes("aten.roll", (image, [1], [0]), image).around_results == ()
    assert cuda_temporary_bytes("aten.roll", (image, [5]), image).around_results == ()
    assert cuda_temporary_bytes("aten.roll", (image, [1, 1, 1], [0, 1, 2]), image).around_results == (MIB, MIB)
    turned = image.transpose(0, 1)
    assert cuda_temporary_bytes("aten.roll", (turned, [1], [0]), image).around_results == (MIB,)
    assert cuda_temporary_bytes("aten.roll", (turned, [1, 1], [0, 1]), image).around_results == (MIB,)


def test_the_entropy_of_logits_takes_two_tensors_of_their_size() -> None:
    logits = meta(512, 512)
    arguments = (logits, logits)
    assert cuda_temporary_bytes(
        "aten.binary_cross_entropy_with_logits", arguments, torch.empty((), device="meta")
    ).after_results == (MIB, MIB)
    assert cuda_temporary_bytes("aten.binary_cross_entropy_with_logits", arguments, logits).after_results == (MIB,)


def test_a_mask_is_counted_in_a_copy_of_whole_numbers_and_half_precision_is_summed_as_it_is() -> None:
    assert cuda_temporary_bytes(
        "aten.sum", (meta(512, 512, dtype=torch.bool),), meta(dtype=torch.int64)
    ).after_results == (2 * MIB,)
    assert cuda_temporary_bytes("aten.sum", (meta(512, 512, dtype=torch.bfloat16),), meta()) == NO_TEMPORARIES


def test_a_loss_is_there_for_each_element_before_it_is_reduced() -> None:
    assert cuda_temporary_bytes("aten.mse_loss", (meta(512, 512), meta(512, 1)), meta()).after_results == (MIB,)
    assert cuda_temporary_bytes("aten.mse_loss", (meta(4), meta(4), 0), meta(4)) == NO_TEMPORARIES


def test_a_mask_that_selects_is_turned_into_positions_along_each_of_its_dimensions() -> None:
    source, mask, picked = meta(64, 64, 256), torch.zeros(64, 64, dtype=torch.bool), meta(1024, 256)
    mask[:16] = True
    positions_bytes = 16 * KIB  # 1024 * 2 * 8
    assert cuda_temporary_bytes("aten.index", (source, [mask]), picked).around_results == (positions_bytes,)
    accumulated = cuda_temporary_bytes("aten.index_put", (source, [mask], picked, True), source)
    each = 8 * KIB
    sorting = (each, each, each, (each, 1))  # by one block of threads
    assert (accumulated.around_results, sizes(accumulated.after_results)) == ((positions_bytes,), sorting)
    assert cuda_temporary_bytes("aten.index_put", (source, [mask], meta()), source) == NO_TEMPORARIES  # a masked fill


def test_positions_of_all_that_a_mask_shows_are_there_while_the_result_is_made() -> None:
    source, mask = meta(512, 512), meta(512, 512, dtype=torch.bool)
    temporaries = cuda_temporary_bytes("aten.masked_select", (source, mask), meta(1024))
    assert temporaries == TemporaryBytes(around_results=(16 * KIB,))  # 1024 * 2 * 8
    row = meta(512, dtype=torch.bool)
    broadcast = cuda_temporary_bytes("aten.masked_select", (source, row), meta(1024))
    assert broadcast == TemporaryBytes(around_results=(16 * KIB, (256 * KIB,)))


def test_what_an_unknown_mask_selects_is_told_by_what_is_taken() -> None:
    with FakeTensorMode():
        source, picked = torch.empty(64, 64, 256), torch.empty(1024, 256)
        mask = source[:, :, 0] > 0
        assert cuda_temporary_bytes("aten.index", (source, [mask]), picked).around_results == (16 * KIB,)


def test_a_masked_scatter_counts_up_to_each_element_of_its_mask() -> None:
    target = meta(512, 512, dtype=torch.bfloat16)
    assert cuda_temporary_bytes("aten.masked_scatter", (target, target > 0, target), target).after_results == (2 * MIB,)
    of_rows = cuda_temporary_bytes("aten.masked_scatter", (target[0], target > 0, target), target)
    assert of_rows.after_results == (2 * MIB,)  # of every element, also where the target is one row of them


def test_the_exponential_of_matrices_takes_powers_and_their_combinations() -> None:
    single, batch = meta(512, 512), meta(4, 256, 256)
    assert cuda_temporary_bytes("aten.linalg_matrix_exp", (single,), single).after_results == (12 * MIB,)
    assert cuda_temporary_bytes("aten.linalg_matrix_exp", (batch,), batch).before_results == (11 * MIB,)


def test_indices_that_are_broadcast_are_copied() -> None:
    source, row, column = meta(64, 64), meta(64, 1, dtype=torch.int64), meta(1, 64, dtype=torch.int64)
    picked = meta(64, 64)
    assert cuda_temporary_bytes("aten.index", (source, [row, column]), picked).around_results == (
        32 * KIB,
        32 * KIB,
    )  # both, 4096 * 8
    assert cuda_temporary_bytes(
        "aten.index", (source, [row, meta(64, 64, dtype=torch.int64)]), picked
    ).around_results == (32 * KIB,)
    for indices in ([column[0], column[0]], [None, column[0]]):
        assert sizes(cuda_temporary_bytes("aten.index", (source, indices), picked).around_results) == ()


def test_operands_that_blas_does_not_accept_are_copied_the_second_first() -> None:
    first, second = meta(64, 2, 64)[:, 0, ::2], meta(32, 2, 128)[:, 0, ::2]  # 64 x 32 and 32 x 64, every second number
    assert cuda_temporary_bytes("aten.mm", (first, second), meta(64, 64)).after_results == (8 * KIB, 8 * KIB)
    assert cuda_temporary_bytes("aten.mm", (first, meta(32, 64)), meta(64, 64)).after_results == (8 * KIB,)


def test_narrow_indices_are_widened() -> None:
    rows = meta(512, dtype=torch.int32)
    assert cuda_temporary_bytes("aten.index", (meta(64, 64), [rows]), meta(512, 64)).around_results == (4 * KIB,)


def test_gradients_of_distances_are_there_for_each_pair() -> None:
    points, others = meta(32, 64), meta(128, 64)
    arguments = (meta(32, 128), points, others, 1.0, meta(32, 128))
    assert cuda_temporary_bytes("aten._cdist_backward", arguments, points).after_results == (MIB,)  # 32 * 128 * 64 * 4
    assert cuda_temporary_bytes("aten._cdist_backward", (*arguments[:3], 0.0, meta(32, 128)), points) == NO_TEMPORARIES
    own = (meta(33 * 16), meta(33, 64), 2.0, meta(33 * 16))
    assert cuda_temporary_bytes("aten._pdist_backward", own, points).after_results == (32 * 33 * 64 * 4,)


def test_drawing_takes_random_numbers_or_three_tensors_where_several_are_put_back() -> None:
    weights = meta(512, 512)
    assert cuda_temporary_bytes("aten.multinomial", (weights, 1, True), None).after_results == (MIB,)
    assert cuda_temporary_bytes("aten.multinomial", (weights, 5, True), None).after_results == (MIB, MIB, MIB)


def test_what_is_drawn_without_putting_back_is_the_largest_of_random_numbers() -> None:
    weights, drawn = meta(512, 512), meta(512, 4, dtype=torch.int64)
    random, largest, *choosing = cuda_temporary_bytes("aten.multinomial", (weights, 4), drawn).after_results
    assert (random, largest) == (MIB, 8 * KIB)
    assert tuple(choosing) == cuda_temporary_bytes("aten.topk", (weights, 4), weights.topk(4)).after_results


def test_shares_are_drawn_by_way_of_as_many_gamma_draws() -> None:
    shares = meta(512, 512)
    assert cuda_temporary_bytes("aten._sample_dirichlet", (shares,), shares).after_results == (MIB,)


def test_distances_are_a_product_of_points_with_two_more_columns() -> None:
    many, few = meta(512, 510), meta(128, 510)  # 1 MiB and a quarter with their columns
    temporaries = cuda_temporary_bytes("aten._euclidean_dist", (few, many), None)
    scaled = (512, 512, 2 * KIB, 2 * KIB, 255 * KIB, 256 * KIB)  # after squares and ones, and with its columns
    assert temporaries.around_results == (scaled, 256 * KIB, MIB)
    (workspace,) = product_workspaces((8, 0), "aten._euclidean_dist", (few, many))
    assert workspace.size_bytes == 8320 * KIB


def test_the_gradient_of_a_bilinear_forms_input_is_a_matrix_per_row_before_it_is_summed() -> None:
    gradient, weight, others = meta(64, 4), meta(4, 64, 64), meta(64, 64)
    arguments = (gradient, weight, others, [2, 3], [0], [1, 2], [1, 3])
    sums = 64 * 64 * 4
    assert cuda_temporary_bytes("aten._trilinear", arguments, meta(64, 64)).after_results == (MIB + sums,)


def test_a_grid_is_made_from_homogeneous_coordinates_of_every_pixel() -> None:
    images, volumes = [4, 3, 256, 256], [4, 1, 64, 64, 16]
    of_images = cuda_temporary_bytes("aten.affine_grid_generator", (meta(4, 2, 3), images), None)
    of_volumes = cuda_temporary_bytes("aten.affine_grid_generator", (meta(4, 3, 4), volumes), None)
    assert (of_images.around_results, of_volumes.around_results) == ((3 * MIB,), (4 * MIB,))


def test_scans_copy_what_lies_in_another_order() -> None:
    source = meta(512, 512)
    assert cuda_temporary_bytes("aten.cumsum", (source, 0), source) == NO_TEMPORARIES
    assert cuda_temporary_bytes("aten.cumsum", (source.t(), 0), source).after_results == (MIB,)
    counted = cuda_temporary_bytes("aten.cumsum", (meta(512, 512, dtype=torch.bool).t(), 0), source.long())
    assert counted.after_results == (2 * MIB, MIB // 4)


def test_factorizations_copy_their_matrix() -> None:
    matrix = meta(512, 512)
    assert cuda_temporary_bytes("aten.linalg_inv_ex", (matrix,), matrix).after_results == (
        MIB + 2 * KIB,
    )  # and 512 exchanged rows
    assert cuda_temporary_bytes("aten._linalg_svd", (matrix,), matrix).after_results == (MIB,)
    assert cuda_temporary_bytes("aten.cholesky_solve", (meta(512, 1), matrix), meta(512, 1)).after_results == (MIB,)


def test_what_is_not_zero_is_counted_by_a_mask_and_its_integers() -> None:
    counted = cuda_temporary_bytes("aten.count_nonzero", (meta(512, 512),), meta(dtype=torch.int64))
    assert counted.after_results == (256 * KIB, 2 * MIB)


def test_chances_in_half_precision_are_converted() -> None:
    chances = meta(512, 512, dtype=torch.bfloat16)
    assert cuda_temporary_bytes("aten.bernoulli", (chances,), chances).after_results == (MIB,)
    assert cuda_temporary_bytes("aten.bernoulli", (chances, 0.5), chances) == NO_TEMPORARIES
    assert cuda_temporary_bytes("aten.bernoulli", (meta(512, 512),), meta(512, 512)) == NO_TEMPORARIES


def test_the_slope_of_a_soft_margin_takes_an_exponential_and_its_exponent() -> None:
    values = meta(512, 512)
    hidden = cuda_temporary_bytes("aten.soft_margin_loss_backward", (meta(), values, values, 1), values)
    assert hidden.around_results == (MIB, (MIB, MIB))


def test_means_of_what_is_scattered_are_divided_by_counts() -> None:
    target, source, places = meta(256, 512), meta(512, 512), meta(512, 512, dtype=torch.int64)
    hidden = cuda_temporary_bytes("aten.scatter_reduce", (target, 0, places, source, "mean"), target)
    assert hidden.after_results == (MIB, MIB // 2, (128 * KIB,))
    assert cuda_temporary_bytes("aten.scatter_reduce", (target, 0, places, source, "sum"), target) == NO_TEMPORARIES


def test_exponentials_are_made_beside_their_maxima() -> None:
    hidden = cuda_temporary_bytes("aten.logsumexp", (meta(512, 512), [1]), meta(512))
    assert hidden.around_results == (2 * KIB, (2 * KIB, 512), MIB)
