"""What others use on a card around a trial."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pynvml

from memplan.planning.trials import neighbours
from memplan.planning.trials.neighbours import (
    others_bytes,
    settled_bytes,
    tightest,
    turn_name,
    was_disturbed,
    with_neighbours,
)
from memplan.probe.trials import TrialRequest
from memplan.recipe import Recipe
from memplan.results import Outcome, OutcomeKind
from memplan.units import GIB, MIB
from tests.fake_driver import FakeCard
from tests.making import CARD, CPU, command, ignore, measurement

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

OUT_OF_MEMORY = Outcome(kind=OutcomeKind.DEVICE_OUT_OF_MEMORY, evidence="CUDA out of memory", duration_s=3.0)


def test_a_card_is_taken_turns_on_by_its_uuid(install: Any) -> None:
    install(FakeCard(uuid="GPU-abc"))
    assert turn_name(CARD) == "GPU-abc"
    assert turn_name(CPU) == "cpu"


def test_what_is_in_use_on_the_card_is_read(install: Any) -> None:
    install(FakeCard(total=24 * GIB, reserved=0, free=20 * GIB))
    assert settled_bytes(CARD) == 4 * GIB
    assert settled_bytes(CPU) is None


def test_a_card_that_does_not_tell_leaves_it_unknown(install: Any) -> None:
    install(FakeCard(fails=dict.fromkeys(("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"), REFUSED)))
    assert settled_bytes(CARD) is None


REFUSED = int(pynvml.NVML_ERROR_NO_PERMISSION)


def test_replicas_of_a_command_take_a_turn_on_every_card_that_they_use(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(*(FakeCard(uuid=f"GPU-{name}") for name in "cba"))
    monkeypatch.setenv("MEMPLAN_TURNS_DIR", str(tmp_path))
    taken: list[str] = []

    def look_at_turns(request: TrialRequest, **_: object) -> Outcome:
        taken.extend(path.stem for path in sorted(tmp_path.glob("*.turn")) if is_locked(path))
        return OUT_OF_MEMORY

    monkeypatch.setattr(neighbours, "run_trial", look_at_turns)
    request = TrialRequest(
        source=command("t {micro_batch_size}"),
        recipe=Recipe(micro_batch_size=4, world_size=2),
        device=replace(CARD, live_index=1),
        budget_bytes=GIB,
    )
    neighbours.run_in_turn(request, notify=print, observer=ignore, template=None)
    assert taken == ["GPU-a", "GPU-b"]
    assert not any(map(is_locked, tmp_path.glob("*.turn")))


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_of_several_cards_the_one_that_others_leave_least_of_counts() -> None:
    assert tightest([GIB, 2 * GIB], [5 * GIB, 3 * GIB]) == (GIB, 5 * GIB)
    assert tightest([None, GIB], [None, GIB]) == (GIB, GIB)
    assert tightest([None], [None]) == (None, None)


def test_others_that_grew_while_memory_ran_out_are_named_and_excuse_the_trial() -> None:
    found = with_neighbours(OUT_OF_MEMORY, before_bytes=GIB, after_bytes=3 * GIB)
    assert found.evidence == "CUDA out of memory; others on the card went from 1.00 GiB to 3.00 GiB meanwhile"
    assert was_disturbed(found, budget_bytes=24 * GIB)


def test_others_that_stayed_or_left_excuse_nothing() -> None:
    for after_bytes in (GIB, GIB // 2, GIB + 10 * MIB):
        found = with_neighbours(OUT_OF_MEMORY, before_bytes=GIB, after_bytes=after_bytes)
        assert not was_disturbed(found, budget_bytes=24 * GIB)
    assert not was_disturbed(OUT_OF_MEMORY, budget_bytes=24 * GIB)


def test_a_trial_that_fits_is_not_disturbed_however_others_grew() -> None:
    fits = replace(OUT_OF_MEMORY, kind=OutcomeKind.FITS)
    assert not was_disturbed(with_neighbours(fits, before_bytes=0, after_bytes=GIB), budget_bytes=24 * GIB)


def test_what_others_use_is_the_trials_own_reading_or_the_larger_of_those_around_it() -> None:
    measured = replace(measurement(400), peak_device_bytes=700 * MIB)
    assert others_bytes(replace(OUT_OF_MEMORY, measurement=measured)) == 300 * MIB
    assert others_bytes(replace(OUT_OF_MEMORY, others_before_bytes=MIB, others_after_bytes=2 * MIB)) == 2 * MIB
    assert others_bytes(OUT_OF_MEMORY) is None
