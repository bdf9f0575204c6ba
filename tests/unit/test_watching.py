"""What a training really takes, held against its plan; the card is a stand-in."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import memplan
from memplan import watching
from memplan.devices.card_readings import BytesReading
from memplan.errors import UsageError
from memplan.plans import PlanRequest
from memplan.probe.journal import Journal
from memplan.recipe import Recipe
from memplan.results import BreakdownBytes
from memplan.training_checks import CheckVerdict, TrainingPeaks
from memplan.units import MIB
from memplan.watching import PlanWarning, compared, read_peaks, verdict_on
from tests.making import measurement, plan, stored

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.plans import Plan

NOW, THEN = Recipe(micro_batch_size=4), Recipe(micro_batch_size=12)
ON_CPU = plan(NOW, THEN)
UUID = "11111111-aaaa-bbbb-cccc-000000000000"


class StandInCuda:
    """Answers like ``torch.cuda`` of a card on which the allocator held 500 MiB and now holds 300."""

    def __init__(self, name: str = "NVIDIA GeForce RTX 3090", *, woken: bool = True) -> None:
        self._name = name
        self._woken = woken

    def is_initialized(self) -> bool:
        return self._woken

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(uuid=UUID)

    def get_device_name(self) -> str:
        return self._name

    def memory_reserved(self, index: int) -> int:
        return 300 * MIB

    def max_memory_reserved(self, index: int) -> int:
        return 500 * MIB

    def max_memory_allocated(self, index: int) -> int:
        return 450 * MIB


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch):
    """Let this process train on a stand-in card, of which the driver tells what it is told to tell."""

    def train(cuda: StandInCuda, *, process_mib: int | None = None, card_mib: int | None = None) -> None:
        def reading(mib: int | None) -> BytesReading:
            return BytesReading(read_bytes=None if mib is None else mib * MIB)

        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        told = {f"GPU-{UUID}": (process_mib, card_mib)}  # by any other name nothing
        monkeypatch.setattr(watching, "process_used_bytes", lambda card, pid: reading(told.get(card, (None, None))[0]))
        monkeypatch.setattr(watching, "device_used_bytes", lambda card: reading(told.get(card, (None, None))[1]))

    return train


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch):
    """Let this process train on the CPU, with a peak as told."""

    def train(peak_mib: int) -> None:
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=StandInCuda(woken=False)))
        monkeypatch.setattr(watching, "peak_resident_bytes", lambda: peak_mib * MIB)

    return train


def card_plan(name: str = "rtx-3090") -> Plan:
    """A plan seen at 700 MiB of 1000: 500 MiB reserved, a context of 150 MiB, and 50 MiB of neighbours."""
    made = plan(NOW, THEN, device_name=name)
    assert made.chosen is not None
    seen = replace(
        measurement(700),
        peak_reserved_bytes=500 * MIB,
        peak_process_bytes=650 * MIB,
        breakdown=BreakdownBytes(activations=500 * MIB, context=150 * MIB),
    )
    return replace(made, chosen=replace(made.chosen, outcome=replace(made.chosen.outcome, measurement=seen)))


def device_peak_mib(found: TrainingPeaks | str) -> int:
    assert isinstance(found, TrainingPeaks)
    return found.device_bytes // MIB


@pytest.mark.parametrize(
    ("peak_mib", "verdict"),
    [
        (850, CheckVerdict.ABOVE),
        (800, CheckVerdict.INSIDE),
        (600, CheckVerdict.INSIDE),
        (599, CheckVerdict.BELOW),
    ],
)
def test_a_peak_lies_in_the_band_or_outside_of_it(peak_mib: int, verdict: CheckVerdict) -> None:
    assert verdict_on(ON_CPU, peak_mib * MIB) is verdict


def test_a_plan_that_promised_less_than_the_band_is_kept_by_less() -> None:
    small = plan(NOW, THEN, peak_mib=400)
    assert verdict_on(small, 390 * MIB) is CheckVerdict.AS_PLANNED
    assert verdict_on(small, 300 * MIB) is CheckVerdict.BELOW


def test_on_the_cpu_the_resident_peak_of_this_process_is_read() -> None:
    held = bytearray(64 * MIB)
    found = read_peaks(ON_CPU)
    assert isinstance(found, TrainingPeaks)
    assert found.process_bytes == found.device_bytes >= len(held)
    assert found.allocated_bytes is None


def test_on_a_card_the_driver_tells_context_and_neighbours(on_card) -> None:
    on_card(StandInCuda(), process_mib=420, card_mib=470)  # 120 MiB of context, 50 MiB of others
    found = read_peaks(card_plan())
    assert isinstance(found, TrainingPeaks)
    assert (found.allocated_bytes, found.reserved_bytes) == (450 * MIB, 500 * MIB)
    assert (found.process_bytes, found.device_bytes) == (620 * MIB, 670 * MIB)


def test_where_the_driver_does_not_tell_the_plans_own_figures_stand_in(on_card) -> None:
    on_card(StandInCuda())
    assert device_peak_mib(read_peaks(card_plan())) == 700


@pytest.mark.parametrize(
    ("made", "cuda", "words"),
    [
        (card_plan("a100-40gb"), StandInCuda(), "for a100-40gb, and the training runs on NVIDIA GeForce RTX 3090"),
        (card_plan(), StandInCuda(woken=False), "for rtx-3090, and the training does not use a card"),
        (ON_CPU, StandInCuda(), "for the CPU, and the training runs on NVIDIA GeForce RTX 3090"),
    ],
    ids=["another card", "no card", "not the CPU"],
)
def test_another_device_than_the_plans_is_not_compared(on_card, made: Plan, cuda: StandInCuda, words: str) -> None:
    on_card(cuda)
    found = compared(made, read_peaks(made), rank=0)
    assert found.verdict is CheckVerdict.NOT_COMPARED
    assert words in found.remark
    assert found.utilisation is None


def test_a_plan_for_a_size_is_compared_with_any_card(on_card) -> None:
    on_card(StandInCuda("NVIDIA H200"))
    assert device_peak_mib(read_peaks(card_plan("24GiB"))) == 700


def test_a_training_that_leaves_the_band_is_warned_of_once(tmp_path: Path, on_cpu) -> None:
    on_cpu(100)
    watch = memplan.watch(stored(tmp_path, ON_CPU))
    on_cpu(900)
    with pytest.warns(PlanWarning, match=r"peaks at 900.0 MiB, 90% of 1000.0 MiB: above the band"):
        watch.check()
    with watch:
        watch.check()  # warnings are errors here


def test_what_a_process_took_before_is_not_taken_for_the_trainings(tmp_path: Path, on_cpu) -> None:
    on_cpu(900)
    found = memplan.watch(stored(tmp_path, ON_CPU)).check()  # warnings are errors here
    assert found.verdict is CheckVerdict.NOT_COMPARED
    assert found.remark == "this process took 900.0 MiB before, and the training no more than that"


def test_a_training_in_the_band_is_not_warned_of_and_the_report_shows_it(tmp_path: Path, on_cpu) -> None:
    made = stored(tmp_path, ON_CPU)
    on_cpu(650)
    with memplan.watch(made) as watch:
        watch.check()
        on_cpu(720)
    (check,) = Journal(tmp_path).load(made.run_id).checks  # the later one in place of the earlier
    assert check.peaks is not None
    assert (check.peaks.device_bytes, check.planned_device_bytes) == (720 * MIB, 700 * MIB)
    assert check.verdict is CheckVerdict.INSIDE


def test_two_trainings_with_one_plan_are_kept_apart(tmp_path: Path, on_cpu) -> None:
    made = stored(tmp_path, ON_CPU)
    for peak_mib in (650, 700):
        on_cpu(peak_mib)
        with memplan.watch(made):
            pass
    assert len(Journal(tmp_path).load(made.run_id).checks) == 2


def test_the_figures_of_a_training_that_fails_are_kept_and_its_error_goes_on(tmp_path: Path, on_cpu) -> None:
    made = stored(tmp_path, ON_CPU)
    on_cpu(650)
    with pytest.raises(ZeroDivisionError), memplan.watch(made):
        raise ZeroDivisionError
    assert len(Journal(tmp_path).load(made.run_id).checks) == 1


def test_a_check_that_cannot_be_kept_is_no_reason_to_stop_a_training(tmp_path: Path, on_cpu) -> None:
    on_cpu(650)
    made = replace(ON_CPU, request=PlanRequest(store=tmp_path / "nowhere"))
    with pytest.warns(PlanWarning, match="not kept"), memplan.watch(made):
        pass
    assert not (tmp_path / "nowhere").exists()


def test_the_rank_is_the_launchers(tmp_path: Path, on_cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    on_cpu(650)
    with memplan.watch(stored(tmp_path, ON_CPU)) as watch:
        assert watch.check().rank == 1


def test_what_is_no_plan_is_told() -> None:
    with pytest.raises(UsageError, match="a NoneType is no plan; pass what"):
        memplan.watch(None)  # type: ignore[arg-type]  # as of a script that skips planning


def test_watching_does_not_import_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(watching, "peak_resident_bytes", lambda: 650 * MIB)
    with warnings.catch_warnings(), memplan.watch(stored(tmp_path, ON_CPU)):
        pass
    assert "torch" not in sys.modules
