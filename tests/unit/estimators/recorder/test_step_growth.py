"""What steps leave more of each time."""

from __future__ import annotations

import pytest

from memplan.estimators.recorder.recording import Recording
from memplan.estimators.recorder.step_growth import growth_notes
from memplan.results import Component

ACTIVATIONS, STATE = Component.ACTIVATIONS, Component.OPTIMIZER_STATE


def notes_on(before: list[tuple[Component, int]], after: list[tuple[Component, int]]) -> list[str]:
    """Return what is said of steps that leave blocks of these bytes, without what follows."""
    recording = Recording(micro_batch_size=1)

    def allocated(kept: list[tuple[Component, int]]) -> set[int]:
        return {recording.allocate(size, each, module="layer", operator="aten.mm") for each, size in kept}

    notes = growth_notes(recording, allocated(before), allocated(after), full_state="; 2 of them")
    return [each.partition(":")[0].partition(",")[0] + each.partition(";")[1] for each in notes]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([], [], []),
        ([(ACTIVATIONS, 100)], [(ACTIVATIONS, 100)], []),  # the last output, kept until the next
        ([(ACTIVATIONS, 100)], [(ACTIVATIONS, 50)], []),
        ([(ACTIVATIONS, 100)], [(ACTIVATIONS, 100), (ACTIVATIONS, 100)], ["the second step"]),
        ([], [(ACTIVATIONS, 16)], []),  # a loss, for one
        ([], [(ACTIVATIONS, 17)], ["the second step"]),
        ([(STATE, 100)], [(STATE, 101)], ["the optimizer's state still grew in the second step;"]),
        ([(STATE, 100)], [(STATE, 50), (ACTIVATIONS, 50)], ["the second step"]),
    ],
    ids=["nothing", "as-much", "less", "more", "single-value", "several-values", "state", "other-than-state"],
)
def test_what_is_left_beyond_what_was_left_before_is_told(
    before: list[tuple[Component, int]], after: list[tuple[Component, int]], said: list[str]
) -> None:
    assert notes_on(before, after) == said


def test_what_grows_most_is_named() -> None:
    recording = Recording(micro_batch_size=1)
    small, large, outside = (
        recording.allocate(size, ACTIVATIONS, module=module, operator=operator)
        for size, module, operator in [(100, "first", "aten.mm"), (200, "second", "aten.relu"), (300, "", "aten.cat")]
    )
    assert "what aten.relu made in second:" in growth_notes(recording, set(), {small, large}, full_state="")[0]
    assert "what aten.cat made:" in growth_notes(recording, {small}, {large, outside}, full_state="")[0]
