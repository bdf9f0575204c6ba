"""Who holds the peak."""

from __future__ import annotations

import numpy as np

from memplan.estimators.breakdown import largest_shares, repeated_paths
from memplan.results import PeakShare


def test_modules_that_repeat_are_written_alike_and_a_lone_one_as_it_is() -> None:
    paths = ("", "layers.0.mlp", "layers.1.mlp", "layers.11.mlp", "head.0.norm", "stages.2.blocks.4.fc1")
    assert repeated_paths(paths) == [
        "",
        "layers.*.mlp",
        "layers.*.mlp",
        "layers.*.mlp",
        "head.0.norm",
        "stages.2.blocks.4.fc1",
    ]


def test_members_of_a_sequence_stay_apart() -> None:
    assert repeated_paths(("encoder.0", "encoder.1", "block1.conv2", "block2.conv2")) == [
        "encoder.0",
        "encoder.1",
        "block1.conv2",
        "block2.conv2",
    ]


def test_repeated_modules_with_parts_are_written_as_their_parts_are() -> None:
    paths = ("h.0", "h.0.mlp", "h.1", "h.1.mlp", "h.1.mlp.0", "h.1.mlp.1")
    assert repeated_paths(paths) == ["h.*", "h.*.mlp", "h.*", "h.*.mlp", "h.1.mlp.0", "h.1.mlp.1"]


def test_holders_of_one_name_are_added_up_and_counted() -> None:
    shares = largest_shares(
        ["a", "b", "a", "c"],
        labels=np.array([0, 1, 2, 3, 0], dtype=np.int32),
        live=np.array([0, 1, 2, 4], dtype=np.int32),
        sizes=np.array([10, 45, 20, 99, 30], dtype=np.int64),
    )
    assert shares == (
        PeakShare(name="a", held_bytes=60, holder_count=2),
        PeakShare(name="b", held_bytes=45, holder_count=1),
    )
