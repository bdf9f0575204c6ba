"""``CUDA_VISIBLE_DEVICES`` by CUDA's own rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.devices.visible_cards import visible_positions

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33")


def test_without_the_variable_all_cards_are_visible() -> None:
    assert visible_positions(None, UUIDS) == (0, 1, 2)


@pytest.mark.parametrize(
    ("setting", "positions"),
    [
        ("2,0", (2, 0)),
        (" 1 , 2", (1, 2)),
        ("", ()),
        ("-1", ()),
        ("none", ()),
        ("0,-1,1", (0,)),
        ("0,7,1", (0,)),
        ("1,,2", (1,)),
        ("1,1", ()),
        ("1gpu,2nd", (1, 2)),
        ("GPU-bb", (2,)),
        ("GPU-bb33,GPU-aa1", (2, 0)),
        ("GPU-bb33,GPU-aa", (2,)),
        ("GPU-aa", ()),
        ("GPU-cc,GPU-bb33", ()),
        ("GPU-bb33,GPU-bb", ()),
    ],
)
def test_the_first_entry_that_names_no_card_ends_the_list_and_a_repeated_card_empties_it(
    setting: str, positions: tuple[int, ...]
) -> None:
    assert visible_positions(setting, UUIDS) == positions


@given(st.text("0123-,GPUab ", max_size=12))
def test_whatever_is_set_names_existing_cards_at_most_once(setting: str) -> None:
    positions = visible_positions(setting, UUIDS)
    assert len(set(positions)) == len(positions)
    assert set(positions) <= {0, 1, 2}
