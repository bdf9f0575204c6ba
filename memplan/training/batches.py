"""The batch as a tree of tensors: nested dicts, lists, tuples, mappings and dataclasses.

Objects with ``apply`` and ``to``, such as the graphs of torch_geometric, are mapped by their own ``apply``; those with
``to`` alone, such as DETR's nested tensors and SpeechBrain's padded batches, attribute by attribute.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """Return a copy of the batch with ``change`` applied to every tensor in it."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        changed = {key: map_tensors(change, value) for key, value in batch.items()}
        return changed if type(batch) is dict else _rebuilt(batch, changed)
    if isinstance(batch, list | tuple):
        values = [map_tensors(change, value) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [each.name for each in dataclasses.fields(batch) if each.init]
        return dataclasses.replace(batch, **{name: map_tensors(change, getattr(batch, name)) for name in names})
    return _object_mapped(change, batch)


def _object_mapped(change: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    if isinstance(batch, type) or not callable(getattr(batch, "to", None)):
        return batch
    mapped = copy.copy(batch)
    if callable(getattr(batch, "apply", None)):
        return mapped.apply(change)
    for name, value in getattr(batch, "__dict__", {}).items():
        mapped.__dict__[name] = map_tensors(change, value)
    return mapped


def tensors_in(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch, in order."""
    found: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(keep, batch)
    return found


def _rebuilt(original: Mapping[Any, Any], changed: dict[Any, Any]) -> Any:
    try:
        return type(original)(changed)  # type: ignore[call-arg]  # mappings are made from a dict by convention
    except TypeError:
        return changed
