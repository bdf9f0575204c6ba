"""How much of a device a plan may use."""

from __future__ import annotations

import pytest

from memplan.devices.cards import DeviceKind, DeviceSpec
from memplan.launchers import Launch
from memplan.planning.question import device_for, share_of
from memplan.plans import PlanRequest
from memplan.units import GIB

CPU = DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=12 * GIB)
CARD = DeviceSpec(name="card", kind=DeviceKind.CUDA, total_bytes=12 * GIB, live_index=0)


def launch(local_world_size: int | None) -> Launch:
    return Launch(rank=0, world_size=4, local_world_size=local_world_size, run_name="run")


@pytest.mark.parametrize(
    ("budget_bytes", "offered_bytes"), [(None, 24 * GIB), (4 * GIB, 4 * GIB), (64 * GIB, 24 * GIB)]
)
def test_a_budget_counts_where_it_is_less_than_the_card(budget_bytes: int | None, offered_bytes: int) -> None:
    assert device_for("24GiB", budget_bytes).total_bytes == offered_bytes


@pytest.mark.parametrize(
    ("device", "local_world_size", "budget_bytes", "share_bytes"),
    [
        (CPU, 4, None, 3 * GIB),
        (CPU, None, None, 12 * GIB),  # the launcher does not tell how many run here
        (CPU, 4, 12 * GIB, 12 * GIB),  # the user has said how much
        (CARD, 4, None, 12 * GIB),  # each process has a card of its own
    ],
)
def test_processes_on_one_machine_share_its_memory_where_nothing_says_how_much_each_may_use(
    device: DeviceSpec, local_world_size: int | None, budget_bytes: int | None, share_bytes: int
) -> None:
    request = PlanRequest(budget_bytes=budget_bytes)
    assert share_of(device, request, launch(local_world_size)).total_bytes == share_bytes


def test_a_process_that_was_started_alone_has_all_of_it() -> None:
    assert share_of(CPU, PlanRequest(), None) == CPU
