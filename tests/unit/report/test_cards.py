"""What `memplan gpus` shows of cards, and of what they do not tell."""

from __future__ import annotations

from dataclasses import replace

from memplan.devices.card_readings import CardProcess, CardReading
from memplan.report.cards import cards_view
from memplan.units import GIB, MIB
from tests.making import rendered

CARD = CardReading(
    index=1,
    name="NVIDIA GeForce RTX 3090",
    uuid="GPU-1111",
    total_bytes=24 * GIB,
    used_bytes=4 * GIB,
    free_bytes=20 * GIB,
    utilisation_percent=37,
    temperature_celsius=61,
    compute_capability=(8, 6),
    driver_version="580.65.06",
    processes=(
        CardProcess(pid=7, name="python", used_bytes=512 * MIB),
        CardProcess(pid=8, name=None, used_bytes=None, missing_because="in a container"),
    ),
)


def shown(*cards: CardReading) -> list[str]:
    return [line for line in rendered(cards_view(cards)).splitlines() if line]


def test_a_card_is_shown_with_its_memory_its_load_and_who_uses_it() -> None:
    assert shown(CARD) == [
        "cuda:1  NVIDIA GeForce RTX 3090  GPU-1111",
        "  memory  4.00 GiB used, 20.00 GiB free of 24.00 GiB",
        "  now     37 % busy, 61 °C; compute capability 8.6, driver 580.65.06",
        "  pid 7        python                   512.0 MiB",
        "  pid 8        -                        ? (in a container)",
    ]


def test_what_a_card_does_not_tell_is_a_dash() -> None:
    silent = replace(
        CARD, utilisation_percent=None, temperature_celsius=None, compute_capability=None, driver_version=None
    )
    assert "  now     - busy, -; compute capability -, driver -" in shown(silent)


def test_an_idle_card_and_one_that_does_not_list_its_processes_are_told_apart() -> None:
    assert shown(replace(CARD, processes=()))[-1] == "  no process uses it"
    hidden = replace(CARD, processes=None, processes_missing_because="under WSL")
    assert shown(hidden)[-1] == "  processes are not listed: under WSL"


def test_cards_that_are_all_hidden_are_said_to_be() -> None:
    assert shown() == ["no card is visible: CUDA_VISIBLE_DEVICES hides them all"]
