"""The cards of this machine for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from memplan.report.wording import NOTHING, bytes_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from memplan.devices.card_readings import CardProcess, CardReading


def cards_view(cards: Sequence[CardReading]) -> RenderableType:
    """Show each card with its memory, load, temperature and the processes on it."""
    if not cards:
        return Text("no card is visible: CUDA_VISIBLE_DEVICES hides them all")
    return Group(*(part for card in cards for part in (_card_view(card), Text())))


def _card_view(card: CardReading) -> Text:
    capability = NOTHING if card.compute_capability is None else ".".join(map(str, card.compute_capability))
    busy = NOTHING if card.utilisation_percent is None else f"{card.utilisation_percent} %"
    heat = NOTHING if card.temperature_celsius is None else f"{card.temperature_celsius} °C"
    text = Text()
    text.append(f"cuda:{card.index}  {card.name}", style="bold").append(f"  {card.uuid}\n", style="dim")
    text.append(
        f"  memory  {bytes_text(card.used_bytes)} used, {bytes_text(card.free_bytes)} free "
        f"of {bytes_text(card.total_bytes)}\n"
    )
    text.append(
        f"  now     {busy} busy, {heat}; compute capability {capability}, driver {card.driver_version or NOTHING}\n"
    )
    if card.processes is None:
        return text.append(f"  processes are not listed: {card.processes_missing_because}")
    for process in card.processes:
        text.append(f"  {_process_line(process)}\n")
    return text if card.processes else text.append("  no process uses it")


def _process_line(process: CardProcess) -> str:
    used = bytes_text(process.used_bytes) if process.used_bytes is not None else f"? ({process.missing_because})"
    return f"pid {process.pid:<8} {process.name or NOTHING:<24} {used}"
