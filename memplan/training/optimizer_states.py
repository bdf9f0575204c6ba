"""Where optimizers keep their states: in their own ``state``, and in optimizers that they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch


def optimizers_in(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """Return an optimizer and those that its attributes hold, also in lists, tuples and dicts, each once."""
    found: dict[int, Any] = {}
    _collect(optimizer, found)
    return tuple(each for each in found.values() if isinstance(each, Optimizer))


def _collect(value: Any, found: dict[int, Any]) -> None:
    """Add optimizers, and the containers that may hold some, by identity."""
    if not isinstance(value, Optimizer | list | tuple | Mapping) or id(value) in found:
        return
    found[id(value)] = value
    for each in _held_by(value):
        _collect(each, found)


def _held_by(value: Optimizer | list[Any] | tuple[Any, ...] | Mapping[Any, Any]) -> Iterable[Any]:
    if isinstance(value, Optimizer):
        return [held for name, held in vars(value).items() if name not in {"state", "param_groups"}]
    return value.values() if isinstance(value, Mapping) else value


def optimizer_states(optimizer: Optimizer) -> Iterator[tuple[torch.Tensor, Any]]:
    """Yield each parameter with its state, of all optimizers in one; one that never made its ``state`` has none."""
    for each in optimizers_in(optimizer):
        yield from getattr(each, "state", {}).items()
