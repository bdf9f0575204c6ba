"""Resolve ``--device``: a card of this machine, one of the catalogue, one known by its size only, or the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind, DeviceSpec, card_of_size, catalogued_card, find_card, usual_context
from memplan.devices.driver import count_cards, read_card
from memplan.devices.host_memory import host_memory
from memplan.devices.processor import half_formats
from memplan.errors import DeviceError, NoDriverError, UnitError, UsageError
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.devices.card_readings import CardReading


def resolve_device(text: str, *, budget_bytes: int | None = None) -> DeviceSpec:
    """Turn ``cuda:0``, ``cuda``, ``cpu``, a card's name, a size such as ``24GiB``, or ``auto`` into a device.

    ``auto`` is the first visible card, or the CPU where there is no driver or no visible card.

    Args:
        text: what the user wrote.
        budget_bytes: what a step on the CPU may use; None for what is free. Of no effect on cards.

    Raises:
        DeviceError: there is no such card, here or in the catalogue.
        UsageError: the budget of the CPU is more than the memory that is free.
    """
    wanted = text.strip().lower()
    if wanted == "cpu":
        return _cpu(budget_bytes)
    if wanted == "auto":
        return _first_card() or _cpu(budget_bytes)
    if wanted.partition(":")[0] in ("cuda", "gpu"):
        return _live_card(text, wanted.partition(":")[2])
    return _planned_card(text)


def _cpu(budget_bytes: int | None) -> DeviceSpec:
    free_bytes = host_memory().free_bytes
    if budget_bytes is not None and budget_bytes > free_bytes:
        raise UsageError(
            f"budget {format_bytes(budget_bytes)} is more than the {format_bytes(free_bytes)} of free memory here",
            hint="trials would starve the machine; name less, or plan for a card by --device NAME or SIZE",
        )
    total_bytes = free_bytes if budget_bytes is None else budget_bytes
    return DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=total_bytes, half_formats=half_formats())


def _first_card() -> DeviceSpec | None:
    try:
        return _spec(read_card(0)) if count_cards() else None
    except NoDriverError:
        return None


def _live_card(text: str, number: str) -> DeviceSpec:
    if number and not (number.isascii() and number.isdigit()):
        raise DeviceError(f"device {text!r} is not understood", hint="write it like cuda:0")
    return _spec(read_card(int(number or 0)))


def _planned_card(text: str) -> DeviceSpec:
    try:
        return find_card(text)
    except DeviceError as unknown:
        try:
            return card_of_size(text)
        except UnitError:
            raise unknown from None


def _spec(reading: CardReading) -> DeviceSpec:
    known = catalogued_card(reading.name)
    sm_count = known.sm_count if known else None
    capability = reading.compute_capability or (known.compute_capability if known else None)
    return DeviceSpec(
        name=reading.name,
        kind=DeviceKind.CUDA,
        total_bytes=reading.total_bytes,
        compute_capability=capability,
        sm_count=sm_count,
        context=usual_context(capability, sm_count),
        driver_version=reading.driver_version,
        live_index=reading.index,
    )
