"""What readings of a trial say."""

from __future__ import annotations

import pytest

from memplan.probe.readings import growth_note
from memplan.units import GIB, KIB, MIB


@pytest.mark.parametrize(
    ("held_bytes", "per_sample"),
    [
        ((10 * MIB, 26 * MIB, 42 * MIB, 58 * MIB), "4.00 MiB"),
        ((10 * MIB, 26 * MIB, 58 * MIB), "4.00 MiB"),  # the least of them is told
        ((10 * MIB, 26 * MIB, 26 * MIB, 42 * MIB), None),
        ((10 * MIB, 26 * MIB), None),
        ((10 * MIB, 10 * MIB, 10 * MIB), None),
        ((10 * KIB, 12 * KIB, 14 * KIB), None),  # 1 GiB takes half a million steps
    ],
)
def test_memory_that_every_step_keeps_is_named(held_bytes: tuple[int, ...], per_sample: str | None) -> None:
    note = growth_note(held_bytes, samples=4, budget_bytes=GIB)
    assert (note is None) if per_sample is None else note is not None and f"keeps {per_sample} per sample" in note
