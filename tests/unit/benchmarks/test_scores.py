"""The scores of the accuracy benchmark, on runs that can be judged in the head."""

from __future__ import annotations

import pytest

from benchmarks.published.scores import (
    Verdict,
    cap_verdict,
    median_error,
    percentile_error,
    relative_errors,
    share_below,
)


def verdict(predicted_mib: float, *, ran_out: bool = False, fits: bool | None = True) -> Verdict:
    return Verdict(card_mib=1000, predicted_mib=predicted_mib, ran_out=ran_out, fits_under_prediction=fits)


def test_errors_are_signed_and_scored_by_size() -> None:
    errors = relative_errors([(90, 100), (101, 100), (100, 100), (130, 100)])
    assert errors == pytest.approx([-0.1, 0.01, 0.0, 0.3])
    assert median_error(errors) == pytest.approx(0.055)
    assert percentile_error(errors, 0.75) == pytest.approx(0.1)
    assert share_below(errors) == 0.25
    assert share_below(errors, -0.2) == 0


@pytest.mark.parametrize(
    ("found", "success", "conserved_mib"),
    [
        (verdict(600), True, 400),  # the rest of the card is free for others
        (verdict(600, fits=False), False, 0),
        (verdict(1100, ran_out=True), True, 1000),  # the run was rightly not begun
        (verdict(900, ran_out=True), False, -1000),
        (verdict(1100), False, -1000),
        (verdict(600, fits=None), None, 0),
    ],
)
def test_an_estimate_succeeds_where_it_could_be_acted_on(
    found: Verdict, success: bool | None, conserved_mib: float
) -> None:
    assert (found.is_success, found.conserved_mib) == (success, conserved_mib)


@pytest.mark.parametrize(("predicted_mib", "fits"), [(604, False), (699, None), (796, True)])
def test_a_cap_between_what_failed_and_what_fitted_decides_nothing(predicted_mib: float, fits: bool | None) -> None:
    found = cap_verdict(predicted_mib=predicted_mib, card_mib=1000, smallest_fit_mib=800, largest_failure_mib=600)
    assert found is fits
