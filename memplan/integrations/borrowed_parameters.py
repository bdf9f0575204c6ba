"""Making a framework's optimizer, and computing its loss, for tensors that it has not seen.

Frameworks build optimizers from a module: they read names, sub-modules and options of it. A workload is given
parameters, which may be fakes of the module's own. So the module holds the given ones while its optimizer is made. A
loss may refer to a module of its own, too, where it is given a copy.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn


@contextmanager
def borrowed_parameters(module: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Let a module hold other parameters while the context is open; tied ones stay tied.

    Args:
        module: the module whose own parameters are set aside meanwhile.
        parameters: one for each of ``module.parameters()``, in that order.
    """
    given = {id(own): other for own, other in zip(module.parameters(), list(parameters), strict=True)}
    slots = [
        (each._parameters, name, own)  # noqa: SLF001 - the registry a module is made of
        for each in module.modules()
        for name, own in each._parameters.items()  # noqa: SLF001
        if own is not None
    ]
    try:
        for registry, name, own in slots:
            registry[name] = given[id(own)]
        yield
    finally:
        for registry, name, own in slots:
            registry[name] = own


@contextmanager
def borrowed_tensors(module: nn.Module, other: nn.Module) -> Iterator[None]:
    """Let a module hold the parameters and buffers of a copy of it while the context is open."""
    pairs = [] if other is module else zip(module.modules(), other.modules(), strict=True)
    registries: list[tuple[Any, dict[str, Any], Any]] = [
        (getattr(own, kind), dict(getattr(own, kind)), getattr(copied, kind))
        for own, copied in pairs
        for kind in ("_parameters", "_buffers")
    ]
    try:
        for held, _, lent in registries:
            held.update(lent)
        yield
    finally:
        for held, before, _ in registries:
            held.update(before)
