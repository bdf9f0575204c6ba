"""Scores of an estimator as the xMem study and its peers define them; plain arithmetic on rows that were predicted."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One run and what was predicted for it, in MiB.

    Args:
        card_mib: what the card offers.
        predicted_mib: process peak that was predicted.
        ran_out: whether the run ended out of memory.
        fits_under_prediction: whether the run fits with the allocator capped at the prediction; None where not known.
    """

    card_mib: float
    predicted_mib: float
    ran_out: bool
    fits_under_prediction: bool | None

    @property
    def outcome_is_right(self) -> bool:
        """Whether it was predicted rightly that the run fits the card or does not."""
        return (self.predicted_mib > self.card_mib) == self.ran_out

    @property
    def is_success(self) -> bool | None:
        """Whether the estimate could have been acted on; None where nobody knows."""
        if not self.outcome_is_right:
            return False
        return True if self.ran_out else self.fits_under_prediction

    @property
    def conserved_mib(self) -> float:
        """Memory that acting on the estimate leaves to others: negative where it was wrong about the card."""
        if not self.outcome_is_right:
            return -self.card_mib
        if self.ran_out:
            return self.card_mib
        return self.card_mib - self.predicted_mib if self.fits_under_prediction else 0.0


def cap_verdict(
    *, predicted_mib: float, card_mib: float, smallest_fit_mib: float | None, largest_failure_mib: float | None
) -> bool | None:
    """Say whether a run fits under a cap, from caps it was repeated under; None between the two.

    The cap is the prediction rounded to whole hundredths of the card, as in the study.
    """
    cap_mib = round(predicted_mib / card_mib, 2) * card_mib
    if smallest_fit_mib is not None and cap_mib >= smallest_fit_mib:
        return True
    if largest_failure_mib is not None and cap_mib <= largest_failure_mib:
        return False
    return None


def relative_errors(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """Return predicted / measured - 1 of pairs of (predicted, measured)."""
    return [predicted / measured - 1 for predicted, measured in pairs]


def median_error(errors: Sequence[float]) -> float:
    """Return the median of the errors' sizes."""
    return statistics.median(abs(each) for each in errors)


def percentile_error(errors: Sequence[float], share: float) -> float:
    """Return the size of error that this share of the rows does not exceed (nearest rank)."""
    sizes = sorted(abs(each) for each in errors)
    rank = max(1, -(-int(share * 1000) * len(sizes) // 1000))
    return sizes[rank - 1]


def share_below(errors: Sequence[float], bound: float = 0.0) -> float:
    """Return the share of signed errors below a bound."""
    return sum(each < bound for each in errors) / len(errors)
