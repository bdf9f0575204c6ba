"""The search for the micro-batch, against peaks that are known functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memplan.errors import UsageError
from memplan.probe.search import Reading, ReadingKind, SearchResult, SearchTarget, find_micro_batch

BUDGET = 1_000_000
BAND = SearchTarget(lower_bytes=600_000, upper_bytes=800_000, limit_bytes=BUDGET, aim_share=0.97)
FAILED = Reading(kind=ReadingKind.FAILED)

Peak = Callable[[int], float]


class Device:
    """Answers as trials would: with the peak where it is within the budget, without one above it."""

    def __init__(self, peak: Peak, *, reads_above_budget: bool = False) -> None:
        self.peak = peak
        self.asked: list[int] = []
        self.reads_above_budget = reads_above_budget

    def __call__(self, size: int) -> Reading:
        self.asked.append(size)
        peak = round(self.peak(size))
        if peak <= BUDGET:
            return Reading(kind=ReadingKind.FITS, peak_bytes=peak)
        return Reading(kind=ReadingKind.TOO_LARGE, peak_bytes=peak if self.reads_above_budget else None)


def line(fixed: float, slope: float) -> Peak:
    return lambda size: fixed + slope * size


def convex(*lines: tuple[int, int]) -> Peak:
    """The highest of several lines, each a fixed part and a slope: phases of a step that take turns to peak."""
    return lambda size: max(fixed + slope * size for fixed, slope in lines)


def search(device: Device, predicted: Peak, *, cap: int = 4096, **options) -> SearchResult:
    return find_micro_batch(device, predicted, BAND, sizes=options.pop("sizes", range(1, cap + 1)), **options)


def test_a_right_prediction_takes_one_trial() -> None:
    found = search(Device(line(100_000, 10_000)), line(100_000, 10_000))
    assert (found.best, found.tried) == (67, (67,))  # 770 000 is the last below 97 % of the upper edge


def test_no_size_beyond_twice_what_fits_is_predicted() -> None:
    asked: list[int] = []

    def predicted(size: int) -> float:
        asked.append(size)
        return 100_000 + 10_000 * size

    found = search(Device(line(100_000, 10_000)), predicted)
    assert found.best == 67
    assert max(asked) == 2 * 67


@pytest.mark.parametrize(("slope", "asked_at_most"), [(1_000, 13), (10_000, 13)], ids=["to the cap", "to the edge"])
def test_few_sizes_are_predicted_as_each_may_take_a_trace(slope: int, asked_at_most: int) -> None:
    asked: set[int] = set()

    def predicted(size: int) -> float:
        asked.add(size)
        return 100_000.0 + slope * size

    search(Device(line(100_000, slope)), predicted, cap=512)
    assert len(asked) <= asked_at_most  # doublings up to 512 are ten


def test_a_low_prediction_is_corrected_by_the_first_trial() -> None:
    found = search(Device(line(100_000, 12_000)), line(100_000, 10_000))
    assert len(found.tried) == 2
    assert found.best == found.tried[-1]
    assert 600_000 <= 100_000 + 12_000 * found.best <= 800_000


def test_a_first_trial_out_of_memory_is_read_as_a_peak_of_at_least_the_limit() -> None:
    found = search(Device(line(100_000, 14_000)), line(100_000, 10_000))
    assert found.tried[0] == 67
    assert len(found.tried) == 2
    assert found.best == found.tried[1]


def test_a_known_reading_in_the_band_is_taken_without_a_trial() -> None:
    known = {50: Reading(kind=ReadingKind.FITS, peak_bytes=650_000)}
    found = search(Device(line(0, 13_000)), line(0, 13_000), known=known)
    assert (found.best, found.tried) == (50, ())


def test_a_known_reading_in_the_band_is_not_enough_where_twice_its_size_is_predicted_there_too() -> None:
    known = {2: Reading(kind=ReadingKind.FITS, peak_bytes=620_000)}
    found = search(Device(line(500_000, 60_000)), line(500_000, 60_000), known=known)
    assert (found.best, found.tried) == (4, (4,))


def test_a_known_reading_in_the_band_is_taken_when_the_larger_size_turns_out_above_it() -> None:
    known = {2: Reading(kind=ReadingKind.FITS, peak_bytes=620_000)}
    found = search(Device(line(220_000, 200_000)), line(500_000, 60_000), known=known)
    assert (found.best, found.tried) == (2, (4,))


def test_a_trial_that_lands_low_in_the_band_is_followed_by_one_of_a_much_larger_size() -> None:
    found = search(Device(line(600_000, 30_000)), line(700_000, 34_000))
    assert (found.best, found.tried) == (5, (2, 5))


@pytest.mark.parametrize("jitter", [0, -7_000])
def test_a_batch_size_that_changes_nothing_is_seen_in_three_trials(jitter: int) -> None:
    device = Device(lambda size: 370_000 + (jitter if size > 8 else 0))
    found = search(device, line(330_000, 10_000), known={4: Reading(kind=ReadingKind.FITS, peak_bytes=370_000)})
    assert (found.best, found.tried[-1]) == (4096, 4096)
    assert len(found.tried) <= 3


def test_two_trials_are_not_the_end_where_a_far_larger_size_is_predicted_in_the_band() -> None:
    known = {64: Reading(kind=ReadingKind.TOO_LARGE)}
    actual = line(650_000, 15_000)  # nine samples take 785 000
    found = search(Device(actual, reads_above_budget=True), line(300_000, 3_000), known=known)
    assert (found.best, found.tried) == (8, (1, 21, 8))


@pytest.mark.parametrize(
    ("actual", "best", "tried"),
    [
        pytest.param(line(390_000, 200_000), 2, (2,), id="which it does"),
        pytest.param(line(390_000, 210_000), 1, (2,), id="which it does not"),
    ],
)
def test_a_much_larger_size_is_tried_up_to_the_edge_where_it_is_predicted_to_stay_below(
    actual: Peak, best: int, tried: tuple[int, ...]
) -> None:
    known = {1: Reading(kind=ReadingKind.FITS, peak_bytes=round(actual(1)))}  # in the band already
    found = search(Device(actual), line(390_000, 200_000), known=known)
    assert (found.best, found.tried) == (best, tried)  # two would take 790 000, the aim is 776 000


def test_a_known_reading_below_the_band_corrects_the_prediction() -> None:
    known = {4: Reading(kind=ReadingKind.FITS, peak_bytes=340_000)}
    found = search(Device(line(300_000, 10_000)), line(100_000, 10_000), known=known)
    assert found.tried == (47,)


def test_the_last_size_that_could_reach_the_band_is_tried() -> None:
    # four samples stay short of the band, and five are predicted above the aim but inside
    device = Device(line(0, 158_000))
    found = search(device, line(0, 148_000))
    assert (found.best, found.tried) == (5, (5,))


def test_no_size_reaches_the_band_where_samples_are_large() -> None:
    found = search(Device(line(0, 450_000)), line(0, 450_000))
    assert (found.best, found.tried) == (1, (1,))
    assert found.remark.endswith("the next larger size would exceed 781.2 KiB")


def test_nothing_fits_and_says_what_it_would_need() -> None:
    found = search(Device(line(0, 1_500_000)), line(0, 1_400_000))
    assert found.best is None
    assert found.tried == (1,)
    assert found.needed_bytes == 1_400_000
    assert "does not fit" in found.remark


def test_a_need_of_which_only_a_lower_bound_is_known_is_told_as_such() -> None:
    found = search(Device(line(0, 1_500_000)), line(0, 400_000))
    assert (found.best, found.needed_bytes) == (None, None)
    assert found.remark == "micro-batch 1 does not fit: it needs more than 976.6 KiB, and 781.2 KiB are allowed"


def test_a_measured_need_counts_more_than_a_predicted_one() -> None:
    found = search(Device(line(0, 900_000)), line(0, 100_000))
    assert found.best is None
    assert found.tried[-1] == 1
    assert found.needed_bytes == 900_000


def test_the_cap_is_tried_before_it_is_returned() -> None:
    found = search(Device(line(100_000, 10)), line(100_000, 10), cap=64)
    assert (found.best, found.tried, found.reached_cap) == (64, (64,), True)
    assert "largest allowed" in found.remark


def test_a_limit_below_a_cap_is_never_answered_with_the_cap() -> None:
    found = search(Device(lambda size: 100_000 if size <= 5000 else 2_000_000), line(100_000, 80), cap=8192)
    assert found.best in found.tried
    assert found.best is not None
    assert found.best <= 5000
    assert not found.reached_cap


# The optimizer's step peaks up to a batch of 7, and the backward pass beyond.
HINGE = convex((690_000, 0), (550_000, 20_000))


def test_a_peak_that_is_flat_at_small_sizes_and_rises_then_takes_one_trial() -> None:
    known = {2: Reading(kind=ReadingKind.FITS, peak_bytes=690_000)}
    found = search(Device(HINGE), HINGE, known=known)
    assert (found.best, found.tried) == (11, (11,))  # 770 000; the aim is a fifth of 110 000 below the edge


def test_readings_move_a_curve_and_leave_its_bends_where_they_are() -> None:
    known = {2: Reading(kind=ReadingKind.FITS, peak_bytes=660_000)}
    found = search(Device(lambda size: HINGE(size) - 30_000), HINGE, known=known)
    assert (found.best, found.tried) == (12, (12,))  # 760 000; the aim is a fifth of 140 000 below the edge


def test_two_readings_say_how_the_error_of_a_curve_grows() -> None:
    known = {size: Reading(kind=ReadingKind.FITS, peak_bytes=690_000 + 2_000 * size) for size in (1, 6)}
    found = search(Device(lambda size: HINGE(size) + 2_000 * size), HINGE, known=known)
    assert (found.best, found.tried) == (10, (10,))  # 770 000


def test_errors_that_shrink_where_a_curve_is_steep_do_not_make_it_fall_beyond() -> None:
    def flatter_from_eleven(size: int) -> float:
        return 666_000 + (11_400 if size > 11 else 24_000) * (size - 11)

    known = {size: Reading(kind=ReadingKind.FITS, peak_bytes=peak) for size, peak in ((8, 641_000), (11, 662_000))}
    device = Device(lambda size: 662_000 + 7_000 * (size - 11), reads_above_budget=True)
    found = search(device, flatter_from_eleven, known=known)
    assert device.asked[0] == 45  # 662 000 and 21 / 72 of 34 x 11 400; the aim is 776 000
    assert found.best is not None
    assert found.best < 45


def test_the_smallest_size_in_the_band_is_predicted_by_what_was_read() -> None:
    found = search(Device(line(100_000, 12_000)), line(100_000, 10_000))
    assert found.smallest_inside == 42  # 604 000
    assert 42 not in found.tried


@pytest.mark.parametrize("slope", [450_000, 10])
def test_there_is_no_smallest_size_in_a_band_that_no_size_reaches(slope: int) -> None:
    assert search(Device(line(0, slope)), line(0, slope)).smallest_inside is None


def test_another_failure_than_memory_stops_the_search_and_does_not_shrink_the_batch() -> None:
    asked: list[int] = []

    def ask(size: int) -> Reading:
        asked.append(size)
        return FAILED

    found = find_micro_batch(ask, line(0, 10_000), BAND, sizes=range(1, 100))
    assert asked == [77]
    assert found.best is None
    assert "another reason than memory" in found.remark


@pytest.mark.parametrize(
    ("runs_up_to", "tried", "best"),
    [
        (16, (72, 24), 8),  # by ratio, 24 lies halfway between the 8 that ran and the 72 that did not
        (24, (72, 24, 48), 24),  # 41 would lie halfway, and 48 is twice 24
        (50, (72, 24, 48, 58), 48),
        (60, (72, 24, 48, 58), 58),  # 680 000 is in the band
    ],
)
def test_below_a_size_that_failed_otherwise_one_more_failure_is_borne(
    runs_up_to: int, tried: tuple[int, ...], best: int
) -> None:
    device = Device(line(100_000, 10_000))

    def ask(size: int) -> Reading:
        reading = device(size)
        return FAILED if size > runs_up_to else reading

    known = {8: Reading(kind=ReadingKind.FITS, peak_bytes=180_000)}
    found = find_micro_batch(ask, line(100_000, 9_300), BAND, sizes=range(1, 4097), known=known)
    assert (found.tried, found.best, found.reached_cap) == (tried, best, False)
    assert "failed for another reason than memory" in found.remark


def test_beyond_a_size_that_failed_otherwise_the_next_doubling_is_tried_where_it_may_do() -> None:
    device = Device(line(100_000, 10_000))

    def ask(size: int) -> Reading:
        return device(size) if 128 % size == 0 else FAILED  # of a batch of 128 samples in equal parts

    known = {4: Reading(kind=ReadingKind.FITS, peak_bytes=140_000)}
    found = find_micro_batch(ask, line(100_000, 32_000), BAND, sizes=range(1, 4097), known=known)
    assert found.tried == (23, 8, 16, 32, 64)
    assert found.best == 64  # 740 000, in the band


def test_below_a_size_that_failed_otherwise_those_that_are_too_large_bound_the_search() -> None:
    device = Device(line(100_000, 30_000), reads_above_budget=True)
    known = {8: Reading(kind=ReadingKind.FITS, peak_bytes=340_000)}

    def ask(size: int) -> Reading:
        return FAILED if size > 60 else device(size)

    found = find_micro_batch(ask, line(340_000, 0.1), BAND, sizes=range(1, 129), known=known)
    assert (found.tried, found.best) == ((128, 32, 16, 22), 22)  # 1 060 000 is too much, 760 000 in the band


def test_sizes_with_gaps_are_kept_to() -> None:
    found = search(Device(line(100_000, 10_000)), line(100_000, 10_000), sizes=[1, 2, 4, 8, 16, 32, 64, 128])
    assert (found.best, found.tried) == (64, (64,))


def test_a_gap_to_a_surely_too_large_size_costs_no_trial() -> None:
    found = search(Device(line(100_000, 20_000)), line(100_000, 20_000), sizes=[1, 2, 4, 8, 16, 64])
    assert (found.best, found.tried) == (16, (16,))


def test_a_good_reading_above_a_bad_one_is_not_trusted() -> None:
    known = {
        10: Reading(kind=ReadingKind.TOO_LARGE),
        20: Reading(kind=ReadingKind.FITS, peak_bytes=700_000),
    }
    found = search(Device(line(0, 90_000)), line(0, 90_000), known=known)
    assert found.best is not None
    assert found.best < 10


@pytest.mark.parametrize("sizes", [[], [0, 1], [3, 2], [1, 1]])
def test_sizes_that_do_not_rise_from_one_are_refused(sizes: list[int]) -> None:
    with pytest.raises(UsageError, match="must rise"):
        find_micro_batch(lambda size: FAILED, line(0, 1), BAND, sizes=sizes)


@pytest.mark.parametrize("edges", [(3, 2, 4), (1, 3, 2), (-1, 2, 3)])
def test_a_band_upside_down_is_refused(edges: tuple[int, int, int]) -> None:
    lower, upper, limit = edges
    with pytest.raises(UsageError, match="must rise"):
        SearchTarget(lower_bytes=lower, upper_bytes=upper, limit_bytes=limit, aim_share=0.97)


def test_a_fitting_reading_without_its_peak_is_refused() -> None:
    with pytest.raises(UsageError, match="needs its peak"):
        Reading(kind=ReadingKind.FITS)


fixed_parts = st.integers(0, 900_000)
slopes = st.integers(1, 600_000)


@st.composite
def rising_peaks(draw: st.DrawFn) -> Peak:
    """Any rising peak: a line, a convex or concave curve, steps of segments, or a line with noise on top."""
    fixed, slope = draw(fixed_parts), draw(slopes)
    kind = draw(st.sampled_from(["line", "convex", "concave", "steps", "cliff", "noise"]))
    if kind == "convex":
        return lambda size: fixed + slope / 100 * size**1.7
    if kind == "concave":
        return lambda size: fixed + slope * size**0.6
    if kind == "steps":
        step = draw(st.integers(1, 300_000))
        return lambda size: fixed + (slope * size // step) * step
    if kind == "cliff":
        edge = draw(st.integers(1, 3000))
        return lambda size: fixed if size <= edge else fixed + 2 * BUDGET
    if kind == "noise":
        seed = draw(st.integers(0, 1000))
        return lambda size: (fixed + slope * size) * (1 + 0.02 * ((size * 7919 + seed) % 101 - 50) / 50)
    return lambda size: fixed + slope * size


@given(
    peak=rising_peaks(),
    guess=st.builds(line, st.floats(-1e6, 1e6), st.floats(-1e4, 1e6)),
    cap=st.integers(1, 5000),
    reads_above_budget=st.booleans(),
)
def test_what_is_found_was_tried_and_fits_for_any_peak_and_any_guess(
    peak: Peak, guess: Peak, cap: int, reads_above_budget: bool
) -> None:
    device = Device(peak, reads_above_budget=reads_above_budget)
    found = search(device, guess, cap=cap)
    assert tuple(device.asked) == found.tried
    assert len(set(found.tried)) == len(found.tried)
    assert all(1 <= size <= cap for size in found.tried)
    assert len(found.tried) <= 2 * cap.bit_length() + 3
    if found.best is None:
        assert 1 in found.tried
        assert round(peak(1)) > BAND.upper_bytes
        assert found.needed_bytes is not None or round(peak(1)) > BUDGET
    else:
        assert found.best in found.tried
        assert round(peak(found.best)) <= BAND.upper_bytes
        assert found.reached_cap == (found.best == cap)
        assert found.needed_bytes is None


@given(
    fixed=st.integers(0, 500_000),
    slope=st.integers(1, 400_000),
    fixed_off=st.floats(-0.05, 0.05),
    slope_off=st.floats(-0.05, 0.05),
    known_size=st.none() | st.integers(1, 8),
)
@example(fixed=0, slope=158_000, fixed_off=0.0, slope_off=-0.05, known_size=None)
@example(fixed=0, slope=198_000, fixed_off=0.0, slope_off=0.05, known_size=1)
def test_a_prediction_within_five_percent_needs_two_trials_and_lands_in_the_band_if_any_size_does(
    fixed: int, slope: int, fixed_off: float, slope_off: float, known_size: int | None
) -> None:
    truth = line(fixed, slope)
    guess = line(fixed * (1 + fixed_off), slope * (1 + slope_off))
    inside = range(max(-(-(BAND.lower_bytes - fixed) // slope), 1), (BAND.upper_bytes - fixed) // slope + 1)
    cap = max(2 * inside.stop, 8)  # no larger size is predicted, and rising sizes are gone through one by one
    known = {known_size: Device(truth)(known_size)} if known_size is not None else {}
    found = search(Device(truth), guess, cap=cap, known=known)
    assert len(found.tried) <= 2
    if inside:
        assert found.best in inside


@st.composite
def convex_peaks(draw: st.DrawFn) -> Peak:
    lines = draw(st.lists(st.tuples(st.integers(-2_000_000, 700_000), st.integers(0, 300_000)), min_size=1, max_size=4))
    return convex((draw(fixed_parts), draw(st.integers(1, 1000))), *lines)


def sizes_inside(peak: Peak, cap: int) -> list[int]:
    return [size for size in range(1, cap + 1) if BAND.lower_bytes <= peak(size) <= BAND.upper_bytes]


@given(peak=convex_peaks(), cap=st.integers(1, 1000))
def test_a_convex_peak_that_is_predicted_exactly_takes_one_trial_and_lands_in_the_band_if_any_size_does(
    peak: Peak, cap: int
) -> None:
    found, inside = search(Device(peak), peak, cap=cap), sizes_inside(peak, cap)
    assert found.smallest_inside == min(inside, default=None)
    if inside:
        assert found.best in inside
        assert len(found.tried) == 1


@given(peak=convex_peaks(), cap=st.integers(1, 1000), off_bytes=st.integers(-80_000, 80_000))
def test_a_convex_peak_that_is_a_tenth_off_everywhere_takes_two_trials(peak: Peak, cap: int, off_bytes: int) -> None:
    def truth(size: int) -> float:
        return max(peak(size) + off_bytes, 0)

    found, inside = search(Device(truth), peak, cap=cap), sizes_inside(truth, cap)
    if inside:
        assert found.best in inside
        assert len(found.tried) <= 2


@given(peak=convex_peaks(), cap=st.integers(1, 1000), factor=st.floats(0.9, 1.1))
def test_a_convex_peak_that_is_a_tenth_off_in_proportion_takes_three_trials(
    peak: Peak, cap: int, factor: float
) -> None:
    def truth(size: int) -> float:
        return round(peak(size) * factor)

    found, inside = search(Device(truth), peak, cap=cap), sizes_inside(truth, cap)
    if inside:
        assert found.best in inside
        assert len(found.tried) <= 3


@pytest.mark.parametrize(("available", "tried", "best"), [(50, (67, 50), 50), (8, (67, 8), 8)])
def test_where_data_end_the_largest_size_that_they_fill_is_tried(
    available: int, tried: tuple[int, ...], best: int
) -> None:
    device = Device(line(100_000, 10_000))

    def ask(size: int) -> Reading:
        reading = device(size)
        if size > available:
            return Reading(kind=ReadingKind.TOO_FEW_SAMPLES, available_samples=available)
        return reading

    found = find_micro_batch(ask, device.peak, BAND, sizes=range(1, 4097))
    assert (found.tried, found.best, found.reached_cap) == (tried, best, True)


@pytest.mark.parametrize("available", [0, 67, 5000])
def test_a_batch_that_data_never_fill_ends_the_search(available: int) -> None:
    short = Reading(kind=ReadingKind.TOO_FEW_SAMPLES, available_samples=available)
    found = find_micro_batch(lambda _: short, line(100_000, 10_000), BAND, sizes=range(1, 4097))
    assert (found.tried, found.best) == ((67,), None)


@pytest.mark.parametrize(
    "fields",
    [{"kind": ReadingKind.TOO_FEW_SAMPLES}, {"kind": ReadingKind.FAILED, "available_samples": 3}],
)
def test_only_a_reading_of_too_few_samples_says_how_many_there_are(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="says how many there are"):
        Reading(**fields)
