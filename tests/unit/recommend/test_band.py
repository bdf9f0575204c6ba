"""The utilisation band and its edges."""

from __future__ import annotations

import pytest

from memplan.errors import UsageError
from memplan.recommend.band import Band, Place, nothing_fits
from memplan.units import GIB


def test_both_edges_belong_to_the_band() -> None:
    band = Band(total_bytes=1000, min_utilisation=0.6, max_utilisation=0.8)
    places = [band.place(peak_bytes) for peak_bytes in (599, 600, 800, 801)]
    assert places == [Place.BELOW, Place.INSIDE, Place.INSIDE, Place.ABOVE]


@pytest.mark.parametrize(("low", "high"), [(0.6, 0.0), (0.6, 1.01), (0.6, -1.0), (0.6, float("nan"))])
def test_an_upper_edge_outside_of_zero_to_one_is_refused(low: float, high: float) -> None:
    with pytest.raises(UsageError, match=r"max-util .* must be above 0 and at most 1"):
        Band(total_bytes=1000, min_utilisation=low, max_utilisation=high)


@pytest.mark.parametrize(("low", "high"), [(0.8, 0.8), (0.9, 0.8), (-0.1, 0.8)])
def test_a_lower_edge_must_lie_below_the_upper_one(low: float, high: float) -> None:
    with pytest.raises(UsageError, match=f"min-util {low:g} must be"):
        Band(total_bytes=1000, min_utilisation=low, max_utilisation=high)


def test_where_nothing_fits_and_nothing_was_measured_more_is_asked_for() -> None:
    band = Band(total_bytes=8 * GIB, min_utilisation=0.6, max_utilisation=0.8)
    assert str(nothing_fits(band, "why", needed_device_bytes=None)).endswith("give a larger device or budget")


def test_where_nothing_fits_the_device_that_would_do_is_named() -> None:
    band = Band(total_bytes=8 * GIB, min_utilisation=0.6, max_utilisation=0.8)
    error = nothing_fits(band, "why", needed_device_bytes=8 * GIB)
    assert str(error).startswith("nothing fits 8.00 GiB at max-util 0.8: why")
    assert "a device or budget of 10.00 GiB; memplan estimate shows" in str(error)


def test_of_a_command_there_is_no_estimate_to_look_at() -> None:
    band = Band(total_bytes=8 * GIB, min_utilisation=0.6, max_utilisation=0.8)
    error = nothing_fits(band, "why", needed_device_bytes=8 * GIB, is_command=True)
    assert str(error).endswith("a device or budget of 10.00 GiB")
