"""Wait until a device has the memory that a plan may use."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.devices.driver import read_cards
from memplan.devices.host_memory import host_memory
from memplan.devices.resolving import resolve_device
from memplan.errors import DeviceError, UsageError
from memplan.progress import Notice, Stage
from memplan.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan.devices.card_readings import CardReading
    from memplan.plans import PlanRequest
    from memplan.progress import Observer

_LOOK_EVERY_S = 2.0


def wait_for_memory(
    request: PlanRequest,
    observer: Observer,
    *,
    card_count: int = 1,
    limit_s: float | None = None,
    look_every_s: float = _LOOK_EVERY_S,
) -> PlanRequest:
    """Wait until what a plan may use at most is free; return the request for the device that has it.

    On a card that is the upper edge of the band; where the request names no card by its number, the first of the
    visible ones that has as much is taken. On the CPU it is the budget.

    A command's replicas need as much on as many cards in a row, the request's card first.

    Args:
        request: what is wanted.
        observer: called with what is waited for.
        card_count: cards that are needed; as many as there are where that is less.
        limit_s: longest time to wait; None for as long as it takes.
        look_every_s: time between two looks.

    Raises:
        DeviceError: it was not free within the limit, or the device is not one that can be waited for.
        UsageError: the CPU is to be waited for, and no budget is named.
    """
    look = _look_at_cpu(request) if request.device.strip().lower() == "cpu" else _look_at_cards(request, card_count)
    started, has_told = time.monotonic(), False
    while True:
        found, said = look()
        if found is not None:
            return replace(request, device=found)
        waited_s = time.monotonic() - started
        if limit_s is not None and waited_s >= limit_s:
            raise DeviceError(f"after {waited_s:.0f} s still {said}", hint="wait longer, or ask for less by --budget")
        observer(Stage(text=said))
        if not has_told:
            observer(Notice(text=said))
            has_told = True
        time.sleep(look_every_s if limit_s is None else min(look_every_s, max(limit_s - waited_s, 0)))


def _look_at_cpu(request: PlanRequest) -> Callable[[], tuple[str | None, str]]:
    budget_bytes = request.budget_bytes
    if budget_bytes is None:
        raise UsageError("--wait on the CPU needs a budget to wait for", hint="name one by --budget, e.g. 4GiB")

    def look() -> tuple[str | None, str]:
        free_bytes = host_memory().free_bytes
        said = f"waiting for {format_bytes(budget_bytes)} of main memory; {format_bytes(free_bytes)} are free"
        return ("cpu" if free_bytes >= budget_bytes else None), said

    return look


def _look_at_cards(request: PlanRequest, count: int) -> Callable[[], tuple[str | None, str]]:
    wanted, _, number = request.device.strip().lower().partition(":")
    if wanted not in ("auto", "cuda", "gpu"):
        raise DeviceError(
            f"device {request.device!r} cannot be waited for", hint="--wait goes with cards of this machine"
        )
    if number:
        resolve_device(request.device)  # says what is wrong with it

    def look() -> tuple[str | None, str]:
        first = int(number or 0)
        cards = _visible_cards()[first : first + count if number else None]
        if not cards:
            raise DeviceError("there is no visible card to wait for", hint="see memplan gpus")
        rows = [cards[start : start + count] for start in range(max(len(cards) - count, 0) + 1)]
        ready = next((row[0] for row in rows if all(_has_enough(card, request) for card in row)), None)
        joined = " and " if len(rows) == 1 else ", or "
        return (None if ready is None else f"cuda:{ready.index}"), _waiting_for(cards, request, joined)

    return look


def _visible_cards() -> Sequence[CardReading]:
    try:
        return read_cards()
    except DeviceError as error:
        hint = "--wait goes with a card of this machine, or with --device cpu and --budget"
        raise DeviceError(error.problem, hint=hint) from None


def _has_enough(card: CardReading, request: PlanRequest) -> bool:
    return _free_bytes(card, request) >= _needed_bytes(card, request)


def _needed_bytes(card: CardReading, request: PlanRequest) -> int:
    return round(_total_bytes(card, request) * request.max_utilisation)


def _free_bytes(card: CardReading, request: PlanRequest) -> int:
    """Return what others leave of a card, or of a budget on it, since they count towards that too."""
    return max(_total_bytes(card, request) - card.used_bytes, 0)


def _total_bytes(card: CardReading, request: PlanRequest) -> int:
    return min(card.total_bytes, request.budget_bytes or card.total_bytes)


def _waiting_for(cards: Sequence[CardReading], request: PlanRequest, joined: str) -> str:
    within = "" if request.budget_bytes is None else f" of the budget of {format_bytes(request.budget_bytes)}"
    return "waiting for " + joined.join(
        f"{format_bytes(_needed_bytes(card, request))} on cuda:{card.index}, where "
        f"{format_bytes(_free_bytes(card, request))}{within} are free{_users(card)}"
        for card in cards
    )


def _users(card: CardReading) -> str:
    """Name who uses a card; nothing where the driver does not report it."""
    named = [
        f"{each.name or 'process'} {each.pid} has {format_bytes(each.used_bytes)}"
        for each in card.processes or ()
        if each.used_bytes is not None
    ]
    return f" ({', '.join(named)})" if named else ""
