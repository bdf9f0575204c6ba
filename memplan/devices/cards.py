"""What a device offers, as a value, and the catalogue of cards one can plan for without having one."""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass
from enum import StrEnum

from memplan.devices.card_catalogue import CARD_ROWS, CardRow
from memplan.devices.card_context import context_bytes, context_of_products_bytes
from memplan.errors import DeviceError
from memplan.results import ContextBasis
from memplan.units import GIB, MIB, format_bytes, parse_bytes


class DeviceKind(StrEnum):
    """What kind of device a step runs on."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSize:
    """The CUDA context with the libraries of a training step; on the CPU the resident interpreter and libraries.

    Args:
        size_bytes: its size.
        basis: where that figure comes from.
        measured_on: day on which it was measured, as ``2026-01-31``; None where it was not, or by this run.
        of_products_bytes: the part of it that a step without matrix products does not hold.
    """

    size_bytes: int
    basis: ContextBasis
    measured_on: str | None = None
    of_products_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One device to plan for.

    Args:
        name: card name from the catalogue, the driver's name of a live card, or ``cpu``.
        kind: CUDA card or CPU.
        total_bytes: memory the device offers: as CUDA reports it, or the CPU's budget.
        compute_capability: e.g. (8, 6); None on the CPU or where only a size is known.
        sm_count: streaming multiprocessors; None on the CPU or where only a size is known.
        half_formats: half-precision formats for which the CPU has instructions; None on a card, or where the machine
            does not tell.
        context: what a process holds outside the allocator; None where it is not known.
        driver_version: of a card that is present; None for one that is only planned for.
        live_index: CUDA index of a card that is present in this machine; None for one that is only planned for.
    """

    name: str
    kind: DeviceKind
    total_bytes: int
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    half_formats: tuple[str, ...] | None = None
    context: ContextSize | None = None
    driver_version: str | None = None
    live_index: int | None = None

    @property
    def context_bytes(self) -> int:
        """Size of the context; 0 where it is not known."""
        return 0 if self.context is None else self.context.size_bytes

    @property
    def is_here(self) -> bool:
        """Whether it is a device of this machine, and not a card to plan for by estimate."""
        return self.kind is DeviceKind.CPU or self.live_index is not None


_SMALLEST_CARD_BYTES = GIB
_MOST_VERSIONS = 4  # more are no versions of one card but a whole series
_BRANDS = re.compile(r"nvidia|geforce|tesla|generation|[^a-z0-9]")


def find_card(name: str) -> DeviceSpec:
    """Return a card of the catalogue by its name here or the driver's.

    Case, spaces, hyphens and NVIDIA's brand words do not matter: ``RTX 3090`` and ``NVIDIA A100-SXM4-40GB`` are found.

    Raises:
        DeviceError: there is no such card, or there are several.
    """
    key = _key(name)
    rows = _rows_by_key()
    row = rows.get(key) or rows.get(f"rtx{key}")
    if row is not None:
        return _spec(row)
    versions = [each.slug for each in CARD_ROWS if key and _key(each.slug).startswith(key)]
    if 1 < len(versions) <= _MOST_VERSIONS:
        raise DeviceError(f"there are several cards {name!r}", hint=f"name one of {', '.join(versions)}")
    raise DeviceError(f"card {name!r} is not known", hint=_nearest(key))


def catalogued_card(name: str) -> DeviceSpec | None:
    """Return a card of the catalogue as :func:`find_card` does; None where it is not in it, or not told apart."""
    try:
        return find_card(name)
    except DeviceError:
        return None


def usual_context(compute_capability: tuple[int, int] | None, sm_count: int | None) -> ContextSize:
    """Return the context of a card on which none was measured; see :func:`card_context.context_bytes`."""
    return ContextSize(
        size_bytes=context_bytes(compute_capability, sm_count),
        basis=ContextBasis.CATALOGUE,
        of_products_bytes=context_of_products_bytes(compute_capability, sm_count),
    )


def card_of_size(text: str) -> DeviceSpec:
    """Return a card of which only the memory is known, from a size such as ``24GiB``.

    Raises:
        UnitError: the text is not a size.
        DeviceError: the size is below 1 GiB.
    """
    total_bytes = parse_bytes(text)
    if total_bytes < _SMALLEST_CARD_BYTES:
        raise DeviceError(f"a card of {format_bytes(total_bytes)} is too small", hint="write its memory like 24GiB")
    return DeviceSpec(
        name=text.strip(),
        kind=DeviceKind.CUDA,
        total_bytes=total_bytes,
        context=usual_context(None, None),
    )


def _spec(row: CardRow) -> DeviceSpec:
    return DeviceSpec(
        name=row.slug,
        kind=DeviceKind.CUDA,
        total_bytes=row.total_mib * MIB,
        compute_capability=row.compute_capability,
        sm_count=row.sm_count,
        context=usual_context(row.compute_capability, row.sm_count),
    )


@functools.cache
def _rows_by_key() -> dict[str, CardRow]:
    return {_key(name): row for row in CARD_ROWS for name in (row.slug, *row.names)}


def _key(name: str) -> str:
    return _BRANDS.sub("", name.lower())


def _nearest(key: str) -> str:
    slugs = {_key(row.slug): row.slug for row in CARD_ROWS}
    near = [slugs[each] for each in difflib.get_close_matches(key, slugs, n=3, cutoff=0.5)]
    if near:
        return f"did you mean {' or '.join(near)}? a size such as 24GiB works too"
    return "name a card such as rtx-3090, a size such as 24GiB, cuda:0 or cpu"
