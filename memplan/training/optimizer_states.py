"""Where optimizers keep their states: their own ``state``, and that of others that they or backward hooks step."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import chain
from types import CellType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HOLDERS = (Optimizer, list, tuple, Mapping, functools.partial, MethodType, FunctionType)


def optimizers_of(optimizer: Optimizer, parameters: Iterable[torch.Tensor]) -> tuple[Optimizer, ...]:
    """Return an optimizer, those it holds, and those that hooks step in the backward pass, each once.

    Args:
        optimizer: its attributes may hold others, also in lists, tuples and dicts.
        parameters: those of the model, whose ``register_post_accumulate_grad_hook`` hooks may refer to others.
    """
    found: dict[int, Any] = {}
    for each in (optimizer, *_hooks_of(parameters)):
        _collect(each, found)
    return tuple(each for each in found.values() if isinstance(each, Optimizer))


def optimizer_states(optimizers: Iterable[Optimizer]) -> Iterator[tuple[torch.Tensor, Any]]:
    """Yield each parameter with its state, of all the optimizers; one that never made its ``state`` has none."""
    for each in optimizers:
        yield from getattr(each, "state", {}).items()


def stepped_copies(optimizers: Iterable[Optimizer], parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return what optimizers step in the place of the model's parameters, such as masters in single precision.

    Args:
        optimizers: those that :func:`optimizers_of` found.
        parameters: those of the model.
    """
    own = set(map(id, parameters))
    found: list[torch.Tensor] = []
    for each in optimizers:
        groups = getattr(each, "param_groups", ())
        stepped = chain(getattr(each, "state", ()), *(group["params"] for group in groups))
        found += [one for one in stepped if isinstance(one, torch.Tensor) and id(one) not in own]
    return found


def _hooks_of(parameters: Iterable[torch.Tensor]) -> list[Any]:
    return [hook for each in parameters for hook in (getattr(each, "_post_accumulate_grad_hooks", None) or {}).values()]


def _collect(value: Any, found: dict[int, Any]) -> None:
    """Add optimizers, and what may hold some, by identity."""
    if id(value) in found or not isinstance(value, _HOLDERS):
        return
    found[id(value)] = value
    for each in _held_by(value):
        _collect(each, found)


def _held_by(value: Any) -> Iterable[Any]:
    match value:
        case Optimizer():
            return [held for name, held in vars(value).items() if name not in {"state", "param_groups"}]
        case Mapping():
            return list(value.values())
        case functools.partial():
            return (value.func, *value.args, *value.keywords.values())
        case MethodType():
            return (value.__func__, value.__self__, *getattr(value.__self__, "__dict__", {}).values())
        case FunctionType():
            return _referred_to_by(value)
        case _:
            return list(value)


def _referred_to_by(function: FunctionType) -> list[Any]:
    """Return what a function has of its closure, its defaults and, other functions apart, its module."""
    enclosed = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    used = [function.__globals__.get(name) for name in function.__code__.co_names]
    of_module = [each for each in used if not isinstance(each, FunctionType)]
    return [*enclosed, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *of_module]
