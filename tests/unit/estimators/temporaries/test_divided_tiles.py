"""Parts of last tiles on Hopper, beside what convolutions took on an H100."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from memplan.estimators.cudnn.heuristics import Engine
from memplan.estimators.temporaries.convolutions import Pass
from memplan.estimators.temporaries.divided_tiles import ClusterKernel, workspace_on_card
from memplan.units import KIB, MIB
from tests.convolution_calls import call, square_call

RECORDED = Path(__file__).parents[4] / "benchmarks" / "truth" / "convolutions-h100.jsonl.gz"
H100 = 132
SQUARE, SMALL = (128, 128), (64, 64)
# Half precision divides some sums into 2 or 6 parts where 3 and 4 are expected.
OTHERWISE_DIVIDED = {
    ((32, 256, 56, 512, 1, 2), "bfloat16"),
    ((32, 128, 28, 128, 3, 1), "float16"),
    ((32, 128, 56, 128, 3, 2), "float16"),
}


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()]


def by(tile: tuple[int, int], cluster: tuple[int, int] = (1, 1), *, may_divide: bool = True) -> ClusterKernel:
    return ClusterKernel(tile=tile, cluster=cluster, may_divide=may_divide)


def counters_bytes(count: int) -> int:
    return 127 + 4 * count


def test_what_ran_on_an_h100_is_worked_out_from_what_was_told() -> None:
    exact, otherwise = 0, set()
    for each in recorded():
        described = each["described"]
        kernel = Engine(number=described["engine"], knobs=described["knobs"]).cluster_kernel
        if kernel is None:
            continue
        shape, dtype = tuple(each["shape"]), each["dtype"]
        ran = square_call(shape, Pass(each["pass"]), dtype, channels_last=each["channels_last"])
        found = workspace_on_card(ran, kernel, H100, told_bytes=described["workspace_bytes"])
        if found == each["ran_bytes"]:
            exact += 1
        elif found is not None:
            otherwise.add((shape, dtype))
    assert exact == 74
    assert otherwise == OTHERWISE_DIVIDED


def test_the_tiles_that_are_left_are_divided_to_fill_the_card() -> None:
    # 1 x 9 tiles of 128 outputs and 128 x 9 inputs of the window; 14 parts of each are 126 blocks, where 132 run
    found = workspace_on_card(
        square_call((16, 128, 112, 128, 3, 1), Pass.WEIGHT_GRADIENT, channels_last=True),
        by(SQUARE),
        H100,
        told_bytes=9 * 2 * 64 * KIB + counters_bytes(8 + 9),  # 2 parts of each on 18
    )
    assert found == 9 * 14 * 64 * KIB + counters_bytes(8 + 9 * (7 + 4 + 2 + 1))


def test_tensors_with_channels_outermost_are_converted_beside() -> None:
    layer = square_call((1, 128, 8, 128, 1, 1), Pass.WEIGHT_GRADIENT)  # one tile, one step of 64 places
    copies_bytes = 2 * 128 * 64 * 4
    assert workspace_on_card(layer, by(SQUARE), H100, told_bytes=copies_bytes + 16) == copies_bytes + 16


def test_tiles_that_leave_less_than_half_the_card_idle_are_not_divided() -> None:
    layer = square_call((32, 256, 14, 256, 3, 1), Pass.FORWARD, channels_last=True)  # 49 clusters where 66 fit
    told_bytes = 8 * 2 * 64 * KIB + counters_bytes(1 + 8 + 8)  # 4 of the 49 are left where 9 fit
    assert workspace_on_card(layer, by(SQUARE, (1, 2)), H100, told_bytes=told_bytes) == 0


def test_a_kernel_that_may_not_divide_only_counts_its_tiles() -> None:
    layer = square_call((16, 128, 112, 128, 3, 1), Pass.INPUT_GRADIENT, channels_last=True)  # 1,568 tiles
    kernel = by(SQUARE, may_divide=False)
    assert workspace_on_card(layer, kernel, H100, told_bytes=counters_bytes(1)) == counters_bytes(1)


def test_short_sums_are_not_divided() -> None:
    layer = square_call((1, 128, 8, 128, 1, 1), Pass.WEIGHT_GRADIENT, channels_last=True)
    assert workspace_on_card(layer, by(SQUARE), H100, told_bytes=0) == 0


@pytest.mark.parametrize("cluster", [(5, 1), (7, 1)])
def test_of_clusters_whose_number_at_once_is_not_known_nothing_is_said(cluster: tuple[int, int]) -> None:
    layer = square_call((16, 128, 112, 128, 3, 1), Pass.FORWARD, channels_last=True)
    assert workspace_on_card(layer, by(SQUARE, cluster), H100, told_bytes=counters_bytes(1)) is None


def test_where_something_else_was_told_than_the_rule_says_nothing_is_said() -> None:
    layer = square_call((16, 128, 112, 128, 3, 1), Pass.WEIGHT_GRADIENT, channels_last=True)
    assert workspace_on_card(layer, by(SQUARE), H100, told_bytes=MIB) is None


def test_of_grouped_convolutions_nothing_is_said() -> None:
    grouped = call((64, 2, 3, 3), Pass.WEIGHT_GRADIENT)
    assert workspace_on_card(grouped, by(SMALL), H100, told_bytes=0) is None


def test_of_double_precision_nothing_is_said() -> None:
    layer = square_call((16, 128, 112, 128, 3, 1), Pass.WEIGHT_GRADIENT, "float64")
    assert workspace_on_card(layer, by(SQUARE), H100, told_bytes=0) is None
