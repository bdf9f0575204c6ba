"""Where a rising figure crosses a limit, found with few evaluations: each may take a trace of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Figures that rise in a line or a few are met by then; others are halved from there on.
_INTERPOLATIONS = 8


def last_within(excess_at: Callable[[int], float], within: int, above: int) -> int:
    """Return the largest whole number at which a rising figure is not above its limit, as far as it rises.

    The figure of the returned number and of the next one were evaluated. Each next number is interpolated between one
    that is within the limit and one that is above.

    Args:
        excess_at: what a number's figure exceeds the limit by; at most 0 within it.
        within: a number within the limit.
        above: a larger one above it.
    """
    excess_within, excess_above = excess_at(within), excess_at(above)
    tries = 0
    while above - within > 1:
        share = -excess_within / (excess_above - excess_within) if tries < _INTERPOLATIONS else 0.5
        number = min(max(within + int(share * (above - within)), within + 1), above - 1)
        excess = excess_at(number)
        if excess > 0:
            above, excess_above = number, excess
        else:
            within, excess_within = number, excess
        tries += 1
    return within
