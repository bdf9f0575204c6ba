"""Parts of last tiles on Hopper, beside the workspaces that ResNet-50 and VGG-16 took on an H100.

Each figure is a requested size in ``benchmarks/truth``'s histories less what is told without parts, in whole tiles.
"""

from __future__ import annotations

import pytest

from memplan.estimators.temporaries.convolutions import Pass
from memplan.estimators.temporaries.divided_tiles import ClusterKernel, parts_bytes
from memplan.units import KIB
from tests.convolution_calls import call

SQUARE, FLAT, TALL, SMALL = (128, 128), (64, 128), (256, 128), (64, 64)
H100 = 132
WEIGHT, FORWARD, INPUT = Pass.WEIGHT_GRADIENT, Pass.FORWARD, Pass.INPUT_GRADIENT


def parts_of(
    kernel: Pass,
    layer: tuple[int, int, int, int],
    of: ClusterKernel,
    *,
    window: int = 3,
    dtype: str = "float32",
) -> int | None:
    samples, inputs, outputs, side = layer
    convolution = call(
        (outputs, inputs, window, window),
        kernel,
        dtype,
        input_shape=(samples, inputs, side, side),
        output_shape=(samples, outputs, side, side),
    )
    return parts_bytes(convolution, of, H100)


def by(tile: tuple[int, int], cluster_blocks: int = 1) -> ClusterKernel:
    return ClusterKernel(tile=tile, cluster_blocks=cluster_blocks)


@pytest.mark.parametrize(
    ("kernel", "layer", "of", "tiles"),
    [
        (WEIGHT, (16, 128, 128, 112), by(SQUARE), 9 * 14),
        (WEIGHT, (16, 128, 256, 56), by(SQUARE), 18 * 7),
        (WEIGHT, (16, 256, 256, 56), by(SQUARE), 36 * 3),
        (WEIGHT, (16, 512, 512, 28), by(SQUARE), 12 * 11),  # of 144 tiles, 132 fill the card
        (WEIGHT, (32, 512, 512, 7), by(SQUARE), 12 * 7),  # 49 steps of the sum have no more parts
        (WEIGHT, (32, 64, 64, 56), by(SMALL), 9 * 14),
        (WEIGHT, (16, 64, 128, 112), by(FLAT), 10 * 13),
        (FORWARD, (16, 512, 512, 28), by(TALL, 2), 64 * 2),
        (INPUT, (16, 512, 512, 14), by(TALL, 2), 52 * 2),
    ],
)
def test_the_last_tiles_are_divided_to_fill_the_card(
    kernel: Pass, layer: tuple[int, int, int, int], of: ClusterKernel, tiles: int
) -> None:
    tile_bytes = of.tile[0] * of.tile[1] * 4
    assert parts_of(kernel, layer, of) == tiles * tile_bytes


def test_clusters_of_three_reach_fewer_multiprocessors() -> None:
    found = parts_of(WEIGHT, (128, 128, 128, 28), by(SQUARE, 3), dtype="bfloat16")
    assert found == 9 * 13 * 64 * KIB


def test_so_do_clusters_of_four() -> None:
    assert parts_of(WEIGHT, (128, 512, 1024, 14), by(SQUARE, 4), window=1, dtype="bfloat16") == 8 * 4 * 3 * 64 * KIB


def test_tiles_that_leave_less_than_half_the_card_idle_are_not_divided() -> None:
    assert parts_of(FORWARD, (32, 256, 256, 14), by(SQUARE, 2)) == 0  # 49 of 66 clusters


def test_tiles_that_fill_the_card_are_not_divided() -> None:
    assert parts_of(FORWARD, (132, 64, 128, 16), by(SQUARE)) == 0  # 264 tiles


@pytest.mark.parametrize("of", [by(SQUARE, 5), by(SQUARE, 7)])
def test_of_clusters_whose_number_at_once_is_not_known_nothing_is_told(of: ClusterKernel) -> None:
    assert parts_of(WEIGHT, (16, 128, 128, 112), of) is None


def test_of_grouped_convolutions_nothing_is_told() -> None:
    grouped = call((64, 2, 3, 3), Pass.WEIGHT_GRADIENT)
    assert parts_bytes(grouped, by(SQUARE), H100) is None


def test_of_double_precision_nothing_is_told() -> None:
    assert parts_of(WEIGHT, (16, 128, 128, 112), by(SQUARE), dtype="float64") is None
