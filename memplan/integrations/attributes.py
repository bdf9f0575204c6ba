"""Numbers that modules and datamodules keep in attributes, hyper-parameters or the keywords of a partial."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One place that holds a number.

    Args:
        holder: the object, or the mapping.
        name: of its attribute, or its key.
        value: the number.
    """

    holder: Any
    name: str
    value: float

    def write(self, value: float) -> None:
        """Put another number there."""
        if isinstance(self.holder, MutableMapping):
            self.holder[self.name] = value
        else:
            setattr(self.holder, self.name, value)


def places_of(holders: list[Any], names: tuple[str, ...]) -> list[Place]:
    """Return where the first of the names that is found anywhere holds a number, and all others with that number.

    Args:
        holders: objects to look in, in order; None is passed over.
        names: attribute names; dots lead through attributes and keys, such as ``hparams.optimizer.lr``.
    """
    found = [place for name in names for holder in holders if (place := _place(holder, name)) is not None]
    return [each for each in found if each.value == found[0].value]


def _place(holder: Any, path: str) -> Place | None:
    *outer, name = path.split(".")
    for part in outer:
        holder = _member(holder, part)
    value = _member(holder, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Place(holder=holder, name=name, value=value)


def _member(holder: Any, name: str) -> Any:
    if isinstance(holder, Mapping):
        return holder.get(name)
    return getattr(holder, name, None)
