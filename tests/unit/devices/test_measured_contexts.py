"""What is kept of a card's measured context, and for whom it holds."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from memplan.devices.cards import DeviceKind, DeviceSpec, card_of_size, find_card
from memplan.devices.measured_contexts import calibrated, remember_context
from memplan.results import ContextBasis
from memplan.units import GIB, MIB
from tests.making import context

if TYPE_CHECKING:
    from pathlib import Path

LIVE = DeviceSpec(
    name="NVIDIA GeForce RTX 3090",
    kind=DeviceKind.CUDA,
    total_bytes=24 * GIB,
    compute_capability=(8, 6),
    context=context(300, ContextBasis.CATALOGUE),
    driver_version="580.65.06",
    live_index=0,
)


@pytest.fixture(autouse=True)
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where contexts are kept."""
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path / "not made yet"))
    return tmp_path / "not made yet" / "contexts.json"


def test_a_live_card_takes_what_was_measured_on_it() -> None:
    remember_context(LIVE, 412 * MIB)
    found = calibrated(LIVE)
    assert found.context is not None
    assert (found.context.size_bytes, found.context.basis) == (412 * MIB, ContextBasis.CALIBRATED)
    assert found.context.measured_on is not None


def test_a_later_measurement_takes_the_place_of_the_earlier_one(record: Path) -> None:
    for context_mib in (412, 430):
        remember_context(LIVE, context_mib * MIB)
    assert calibrated(LIVE).context_bytes == 430 * MIB
    assert len(json.loads(record.read_text())) == 1


@pytest.mark.parametrize(
    "other", [{"driver_version": "570.10"}, {"name": "NVIDIA GeForce RTX 3060"}], ids=["driver", "card"]
)
def test_a_measured_context_holds_for_no_other_card_or_driver(other: dict[str, str]) -> None:
    remember_context(LIVE, 412 * MIB)
    assert calibrated(replace(LIVE, **other)) == replace(LIVE, **other)


def test_a_measured_context_holds_for_no_other_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    remember_context(LIVE, 412 * MIB)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9")
    assert calibrated(LIVE) == LIVE


def test_planning_for_such_a_card_by_name_takes_it_too_and_a_size_does_not() -> None:
    remember_context(LIVE, 412 * MIB)
    assert calibrated(find_card("rtx-3090")).context_bytes == 412 * MIB
    assert calibrated(find_card("rtx-3060")) == find_card("rtx-3060")
    assert calibrated(card_of_size("24GiB")) == card_of_size("24GiB")


@pytest.mark.parametrize("text", ["", "[{]", "{}", '[{"card_name": 1}]', "[7]"])
def test_a_damaged_record_counts_as_none_and_is_mended_by_the_next(record: Path, text: str) -> None:
    record.parent.mkdir()
    record.write_text(text)
    assert calibrated(LIVE) == LIVE
    remember_context(LIVE, 412 * MIB)
    assert calibrated(LIVE).context_bytes == 412 * MIB


@pytest.mark.parametrize(
    "device",
    [replace(LIVE, driver_version=None), DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=GIB)],
    ids=["driver not told", "cpu"],
)
def test_only_cards_of_a_known_driver_are_remembered(record: Path, device: DeviceSpec) -> None:
    remember_context(device, 412 * MIB)
    assert not record.parent.exists()


def test_a_folder_that_cannot_be_made_is_no_error(record: Path) -> None:
    record.parent.write_text("a file in its place")
    remember_context(LIVE, 412 * MIB)
    assert calibrated(LIVE) == LIVE


def test_without_an_own_folder_the_users_cache_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMPLAN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    remember_context(LIVE, 412 * MIB)
    assert (tmp_path / "memplan" / "contexts.json").is_file()


def test_a_user_without_a_home_has_no_record_and_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MEMPLAN_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # raises KeyError, as for an id that is not in the list
    remember_context(LIVE, 412 * MIB)
    assert calibrated(LIVE) == LIVE
