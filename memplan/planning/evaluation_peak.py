"""What a plan says where evaluation between steps takes more than any step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.results import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memplan.results import Estimate

_PEAKS = "the peak falls into evaluation: smaller batches there, or less kept of each, leave more to training"


def evaluation_peak_notes(estimates: Iterable[Estimate | None]) -> tuple[str, ...]:
    """Say that the peak falls into evaluation and what helps, where it does in any of these estimates."""
    return (_PEAKS,) if any(each is not None and each.peak_phase is Phase.EVALUATION for each in estimates) else ()
