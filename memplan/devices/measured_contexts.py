"""The CUDA contexts that live trials measured on this machine's cards, kept for later estimates.

The only place that reads or writes that record: ``contexts.json`` in ``MEMPLAN_CACHE_DIR``, or else in ``memplan``
below ``XDG_CACHE_HOME`` or ``~/.cache``. A context belongs to a card, a driver and a version of PyTorch. The record is
a cache: what cannot be read is taken as not there.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.devices.cards import ContextSize, DeviceKind, catalogued_card
from memplan.errors import OutputError
from memplan.results import ContextBasis
from memplan.textfiles import write_text_atomically

if TYPE_CHECKING:
    from memplan.devices.cards import DeviceSpec

_CACHE_VARIABLE = "MEMPLAN_CACHE_DIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasuredContext:
    """What one trial measured.

    Args:
        card_name: the driver's name of the card.
        driver_version: e.g. ``580.65.06``.
        torch_version: of the PyTorch that ran.
        context_bytes: CUDA context and libraries of a training step, outside the caching allocator.
        measured_on: day, as ``2026-01-31``.
    """

    card_name: str
    driver_version: str
    torch_version: str
    context_bytes: int
    measured_on: str


def calibrated(device: DeviceSpec) -> DeviceSpec:
    """Return the device with the context last measured on such a card here; unchanged where none was.

    A live card takes what was measured under its own driver; a card that is only planned for, what any driver gave.
    """
    found = next((each for each in reversed(_read(_path())) if _holds_for(each, device)), None)
    if found is None:
        return device
    context = ContextSize(size_bytes=found.context_bytes, basis=ContextBasis.CALIBRATED, measured_on=found.measured_on)
    return replace(device, context=context)


def remember_context(device: DeviceSpec, context_bytes: int) -> None:
    """Store what a trial on a live card measured, replacing an earlier figure; not where it cannot be stored."""
    path = _path()
    if path is None or device.kind is not DeviceKind.CUDA or device.driver_version is None or context_bytes <= 0:
        return
    measured = _MeasuredContext(
        card_name=device.name,
        driver_version=device.driver_version,
        torch_version=importlib.metadata.version("torch"),
        context_bytes=context_bytes,
        measured_on=datetime.now(tz=UTC).date().isoformat(),
    )
    others = [each for each in _read(path) if _key(each) != _key(measured)]
    with contextlib.suppress(OSError, OutputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, json.dumps([asdict(each) for each in (*others, measured)], indent=1) + "\n")


def _path() -> Path | None:
    """Return the path of the record; None for a user without a home, as in containers."""
    own = os.environ.get(_CACHE_VARIABLE)
    if own:
        return Path(own) / "contexts.json"
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return folder / "memplan" / "contexts.json"


def _read(path: Path | None) -> list[_MeasuredContext]:
    if path is None:
        return []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    names = {each.name for each in fields(_MeasuredContext)}
    return [_MeasuredContext(**row) for row in rows if _is_row(row, names)] if isinstance(rows, list) else []


def _is_row(row: Any, names: set[str]) -> bool:
    return isinstance(row, dict) and set(row) == names and isinstance(row["context_bytes"], int)


def _key(measured: _MeasuredContext) -> tuple[str, str, str]:
    return (measured.card_name, measured.driver_version, measured.torch_version)


def _holds_for(measured: _MeasuredContext, device: DeviceSpec) -> bool:
    if device.kind is not DeviceKind.CUDA or measured.torch_version != importlib.metadata.version("torch"):
        return False
    if device.live_index is not None:
        return (measured.card_name, measured.driver_version) == (device.name, device.driver_version)
    card = catalogued_card(measured.card_name)
    return card is not None and card.name == device.name
