"""Bytes into text and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import UnitError
from memplan.units import (
    GIB,
    KIB,
    MIB,
    ceil_div,
    format_bytes,
    parse_bytes,
    power_of_two_from,
    power_of_two_up_to,
    round_up,
)


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1.00 KiB"),
        (3 * MIB // 2, "1.50 MiB"),
        (150 * MIB, "150.0 MiB"),
        (24 * GIB, "24.00 GiB"),
        (-2 * MIB, "-2.00 MiB"),
    ],
)
def test_bytes_are_written_in_the_largest_binary_unit_that_fits(count_bytes: int, text: str) -> None:
    assert format_bytes(count_bytes) == text


@pytest.mark.parametrize(
    ("text", "count_bytes"),
    [("24GiB", 24 * GIB), ("24G", 24 * GIB), ("24 gb", 24 * 10**9), ("1.5MiB", 3 * MIB // 2), ("512", 512)],
)
def test_sizes_are_read_with_binary_and_decimal_units(text: str, count_bytes: int) -> None:
    assert parse_bytes(text) == count_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "12 parsecs", "0", "1e9", "nan"])
def test_what_is_not_a_size_is_refused_with_the_text_and_an_example(text: str) -> None:
    with pytest.raises(UnitError, match="is not understood; write it like 24GiB") as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


@given(st.integers(min_value=1, max_value=2**50))
def test_a_written_size_reads_back_to_within_its_two_decimals(count_bytes: int) -> None:
    assert parse_bytes(format_bytes(count_bytes)) == pytest.approx(count_bytes, rel=0.005)


@pytest.mark.parametrize(("count", "steps"), [(0, 0), (1, 1), (512, 1), (513, 2)])
def test_counts_are_rounded_up_to_multiples(count: int, steps: int) -> None:
    assert (ceil_div(count, 512), round_up(count, 512)) == (steps, steps * 512)


@pytest.mark.parametrize(("number", "power"), [(0, 1), (1, 1), (3, 2), (4, 4), (1023, 512)])
def test_numbers_are_rounded_down_to_powers_of_two(number: int, power: int) -> None:
    assert power_of_two_up_to(number) == power


@pytest.mark.parametrize(("number", "power"), [(0, 1), (1, 1), (3, 4), (4, 4), (1023, 1024)])
def test_numbers_are_rounded_up_to_powers_of_two(number: int, power: int) -> None:
    assert power_of_two_from(number) == power
