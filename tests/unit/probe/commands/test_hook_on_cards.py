"""What the hook asks of the cards and does to them, with made-up cards behind torch.cuda."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memplan.probe.commands.hook import Observer
from memplan.probe.commands.hook_figures import CardCap, card_figures
from memplan.units import GIB
from tests.fake_cuda import FakeCuda, FakeMemory

if TYPE_CHECKING:
    from pathlib import Path


def tensor_on(index: int | None) -> Any:
    device = torch.device("cpu") if index is None else torch.device("cuda", index)
    return SimpleNamespace(is_cuda=index is not None, device=device)


def test_the_card_of_the_parameters_is_read_whichever_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    held = FakeMemory(total=8 * GIB, used=GIB, reserved=640, reserved_peak=700, allocated_peak=600, alloc_retries=2)
    cuda = FakeCuda([FakeMemory(), held]).install(monkeypatch)
    assert card_figures([tensor_on(1)]) == {
        "index": 1,
        "allocated_peak_bytes": 600,
        "reserved_peak_bytes": 700,
        "reserved_bytes": 640,
        "used_bytes": GIB,
        "alloc_retries": 2,
    }
    assert cuda.current == 0


def test_of_several_cards_the_fullest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda([FakeMemory(reserved_peak=1), FakeMemory(reserved_peak=3), FakeMemory(reserved_peak=2)]).install(
        monkeypatch
    )
    found = card_figures([tensor_on(0), tensor_on(1), tensor_on(2)])
    assert found is not None
    assert found["index"] == 1


def test_where_the_parameters_are_kept_on_the_host_the_current_card_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda([FakeMemory(), FakeMemory()], current=1).install(monkeypatch)
    found = card_figures([tensor_on(None)])
    assert found is not None
    assert found["index"] == 1


def test_a_process_that_does_not_use_cuda_has_no_card() -> None:
    assert card_figures([tensor_on(None)]) is None


def test_nothing_waits_for_the_card_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda([FakeMemory()], is_capturing=True).install(monkeypatch)
    assert card_figures([tensor_on(0)]) is None


@pytest.mark.parametrize(("limit_bytes", "share"), [(4 * GIB, 0.5), (0, 0.0), (9 * GIB, 1.0)])
def test_the_allocators_share_is_one_of_the_card_itself(
    limit_bytes: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda([FakeMemory(total=8 * GIB)]).install(monkeypatch)
    CardCap(limit_bytes).apply_to_cards_of([tensor_on(0)])
    assert cuda.cards[0].share == share


def test_a_cap_touches_no_other_card_and_leaves_the_current_one_current(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda([FakeMemory(), FakeMemory(), FakeMemory()]).install(monkeypatch)
    CardCap(4 * GIB).apply_to_cards_of([tensor_on(1), tensor_on(None)])
    assert [card.share for card in cuda.cards] == [None, 0.5, None]
    assert cuda.contexts == {1}
    assert cuda.current == 0


def test_a_card_is_capped_once_and_what_the_script_sets_afterwards_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda([FakeMemory()]).install(monkeypatch)
    cap = CardCap(4 * GIB)
    cap.apply_to_cards_of([tensor_on(0)])
    cuda.cards[0].share = 0.25
    cap.apply_to_cards_of([tensor_on(0)])
    assert cuda.cards[0].share == 0.25


def test_without_a_limit_no_card_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda([FakeMemory()]).install(monkeypatch)
    CardCap(None).apply_to_cards_of([tensor_on(0)])
    assert cuda.cards[0].share is None


def test_a_model_that_was_moved_after_its_optimizer_was_made_is_capped_by_its_first_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda([FakeMemory(), FakeMemory()]).install(monkeypatch)
    with FakeTensorMode():
        loss = torch.ones((), device="cuda:1")
        Observer(events_path="/nowhere", steps=3, card_limit_bytes=4 * GIB).on_backward([loss])
    assert [card.share for card in cuda.cards] == [None, 0.5]


@pytest.mark.parametrize(("reserved_peak", "is_full"), [(3 * GIB, False), (4 * GIB, True)])
def test_a_cap_knows_whether_the_allocator_has_come_near_it(
    reserved_peak: int, is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda([FakeMemory()]).install(monkeypatch)
    cap = CardCap(4 * GIB)
    cap.apply_to_cards_of([tensor_on(0)])
    cuda.cards[0].reserved_peak = reserved_peak
    assert cap.is_nearly_reached() is is_full


@pytest.mark.parametrize(("searches", "peaks", "retries"), [(True, [7, 4], [3, 0]), (False, [7, 7], [3, 3])])
def test_the_search_for_algorithms_in_the_first_step_is_left_out_of_those_that_follow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, searches: bool, peaks: list[int], retries: list[int]
) -> None:
    card = FakeMemory(reserved=2 * GIB, reserved_peak=7 * GIB, alloc_retries=3)
    FakeCuda([card]).install(monkeypatch)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", searches)
    hook = Observer(events_path=str(tmp_path / "events"), steps=3)
    (tmp_path / "events").touch()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])  # kept on the host, as offloaded ones are
    for _ in range(2):
        hook.on_step(optimizer, (), {})
        card.reserved_peak = max(card.reserved_peak, 4 * GIB)
    told = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    cards = [each["card"] for each in told if each["event"] == "step"]
    assert [each["reserved_peak_bytes"] // GIB for each in cards] == peaks
    assert [each["alloc_retries"] for each in cards] == retries


def test_where_no_card_was_capped_none_is_full() -> None:
    assert not CardCap(4 * GIB).is_nearly_reached()
