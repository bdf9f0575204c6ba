"""Waiting for memory: on cards through a stand-in for the driver, on the CPU for real."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.errors import DeviceError, UsageError
from memplan.planning.trials import waiting
from memplan.planning.trials.waiting import wait_for_memory
from memplan.plans import PlanRequest
from memplan.progress import Notice
from memplan.units import GIB, MIB
from tests.fake_driver import FakeCard


def card(uuid: str, *, free_gib: int) -> FakeCard:
    return FakeCard(uuid=uuid, total=24 * GIB, reserved=0, free=free_gib * GIB)


def wait(request: PlanRequest, observer: Any = lambda event: None, limit_s: float | None = None) -> PlanRequest:
    return wait_for_memory(request, observer, limit_s=limit_s, look_every_s=0.01)


def test_a_card_with_enough_free_memory_is_not_waited_for(install: Any, on_host: None) -> None:
    install(card("GPU-a", free_gib=20))
    heard: list[Any] = []
    assert wait(PlanRequest(device="cuda:0"), heard.append).device == "cuda:0"
    assert heard == []


def test_a_full_card_is_waited_for_until_its_user_has_gone(install: Any, on_host: None) -> None:
    full = card("GPU-a", free_gib=10)
    full.computing = {77: 14 * GIB}
    install(full, process_names={77: "trainer"})
    heard: list[str] = []

    def observer(event: Any) -> None:
        heard.append(event.text)
        if len(heard) == 4:
            full.free = 24 * GIB

    assert wait(PlanRequest(device="cuda:0"), observer).device == "cuda:0"
    assert heard[0] == (
        "waiting for 19.20 GiB on cuda:0, where 10.00 GiB are free (trainer 77 has 14.00 GiB)"  # 80 % of 24 GiB
    )


def test_without_a_number_the_first_card_that_is_free_is_taken(install: Any, on_host: None) -> None:
    cards = [card("GPU-a", free_gib=4), card("GPU-b", free_gib=4)]
    install(*cards)

    def observer(event: Any) -> None:
        cards[1].free = 24 * GIB

    assert wait(PlanRequest(device="auto"), observer).device == "cuda:1"


def test_replicas_wait_for_a_row_of_cards(install: Any, on_host: None) -> None:
    cards = [card(f"GPU-{number}", free_gib=free_gib) for number, free_gib in enumerate((24, 4, 24, 24))]
    install(*cards)
    auto, first = PlanRequest(device="auto"), PlanRequest(device="cuda:0")
    assert wait_for_memory(auto, lambda event: None, card_count=2).device == "cuda:2"
    with pytest.raises(DeviceError, match=r"on cuda:0, where 24\.00 GiB are free and 19\.20 GiB on cuda:1"):
        wait_for_memory(first, lambda event: None, card_count=2, limit_s=0.02)
    cards[1].free = 24 * GIB
    assert wait_for_memory(first, lambda event: None, card_count=9).device == "cuda:0"


def test_others_count_towards_a_budget(install: Any, on_host: None) -> None:
    used = card("GPU-a", free_gib=22)
    install(used)
    request = PlanRequest(device="cuda:0", budget_bytes=10 * GIB)
    assert wait(request).device == "cuda:0"  # 10 GiB less the 2 in use are 80 %
    used.free = 21 * GIB
    with pytest.raises(DeviceError, match=r"8\.00 GiB on cuda:0, where 7\.00 GiB of the budget of 10\.00 GiB are free"):
        wait(request, limit_s=0.02)


def test_a_limit_ends_the_wait_and_says_what_was_missing(install: Any, on_host: None) -> None:
    install(card("GPU-a", free_gib=10))
    with pytest.raises(DeviceError, match=r"after 0 s still waiting for 19\.20 GiB on cuda:0, where 10\.00 GiB are"):
        wait(PlanRequest(device="cuda:0"), limit_s=0.05)


def test_what_is_waited_for_is_said_once_where_there_is_no_progress_bar(install: Any, on_host: None) -> None:
    full = card("GPU-a", free_gib=10)
    install(full)
    heard: list[Any] = []

    def observer(event: Any) -> None:
        heard.append(event)
        if len(heard) == 9:
            full.free = 24 * GIB

    wait(PlanRequest(device="cuda:0"), observer)
    assert sum(isinstance(each, Notice) for each in heard) == 1


def test_a_card_that_does_not_list_its_users_is_waited_for_all_the_same(install: Any, in_container: None) -> None:
    full = card("GPU-a", free_gib=10)
    install(full)
    with pytest.raises(DeviceError, match=r"10\.00 GiB are free$|free; wait longer"):
        wait(PlanRequest(device="cuda:0"), limit_s=0.02)


def test_on_the_cpu_the_budget_is_waited_for() -> None:
    assert wait(PlanRequest(device="cpu", budget_bytes=64 * MIB)).device == "cpu"
    with pytest.raises(DeviceError, match="still waiting for"):
        wait(PlanRequest(device="cpu", budget_bytes=1 << 50), limit_s=0.02)


def test_what_cannot_be_waited_for_is_refused(install: Any, on_host: None) -> None:
    install(card("GPU-a", free_gib=24))
    with pytest.raises(UsageError, match="needs a budget"):
        wait(PlanRequest(device="cpu"))
    with pytest.raises(DeviceError, match="cannot be waited for"):
        wait(PlanRequest(device="rtx-3090"))
    with pytest.raises(DeviceError, match="cuda:4 does not exist"):
        wait(PlanRequest(device="cuda:4"))


def test_where_there_is_no_driver_what_can_be_waited_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise DeviceError("this machine has no NVIDIA driver", hint="plan for a card by name")

    monkeypatch.setattr(waiting, "read_cards", no_driver)
    with pytest.raises(
        DeviceError, match="no NVIDIA driver; --wait goes with a card of this machine, or with --device"
    ):
        wait(PlanRequest(device="auto"))
