"""Operators that users define in Python (``torch.library.custom_op``), which PyTorch registers in their process alone.

Imports no torch: what is asked here holds for the private attributes of versions 2.9 to 2.15.
"""

from __future__ import annotations

import pkgutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.children.found_by_name import goes_by_value, reduced_to_name

if TYPE_CHECKING:
    from collections.abc import Callable

_DEFINITIONS = "torch._library.custom_ops"
_OPERATORS = "torch._ops"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registered:
    """What an operator was given besides its schema.

    Args:
        function: what it was made of.
        bodies: what runs on each device.
        fake: says what the results look like; None if nothing does.
        backward: computes gradients; None if it has none.
        setup_context: keeps for that what it needs; None if nothing.
        casts: to what autocast casts on each kind of device.
    """

    function: Callable[..., Any]
    bodies: dict[str | None, Callable[..., Any]]
    fake: Callable[..., Any] | None
    backward: Callable[..., Any] | None
    setup_context: Callable[..., Any] | None
    casts: dict[str, Any]


def reduced_custom_operator(value: Any) -> tuple[Any, ...] | None:
    """Return how to get an operator again, as ``__reduce_ex__`` does it; None for anything else.

    An operator that its module has under its name is found there, and one of a script or notebook is defined again. So
    is that which ``torch.ops`` has of the latter.
    """
    if type(value).__module__ == _OPERATORS:
        definition = _definition_of(value)
        is_scripts = definition is not None and goes_by_value(definition._init_fn.__module__)  # noqa: SLF001 - see above
        return (_found_in_torch, (str(value), definition)) if is_scripts else None
    if (type(value).__module__, type(value).__name__) != (_DEFINITIONS, "CustomOpDef"):
        return None
    function = value._init_fn  # noqa: SLF001 - as above
    named = reduced_to_name(value, function)
    if named is not None:
        return named
    registered = _Registered(
        function=function,
        bodies=value._backend_fns,  # noqa: SLF001 - as above
        fake=value._abstract_fn,  # noqa: SLF001 - as above
        backward=value._backward_fn,  # noqa: SLF001 - as above
        setup_context=value._setup_context_fn,  # noqa: SLF001 - as above
        casts=autocast_types(value),
    )
    defined = (value._qualname, value._schema, tuple(value._tags))  # noqa: SLF001 - as above
    return _defined_again, defined, registered, None, None, _register


def autocast_types(operator: Any) -> dict[str, Any]:
    """Return the type that an operator's definition casts its arguments to under autocast, by kind of device."""
    by_device: dict[str, Any] | None = getattr(operator, "_autocast_dtype", None)
    if by_device is None:  # PyTorch 2.11 and before
        by_device = {kind: getattr(operator, f"_autocast_{kind}_dtype", None) for kind in ("cuda", "cpu")}
    return {kind: dtype for kind, dtype in by_device.items() if dtype is not None}


def _definition_of(operator: Any) -> Any:
    """Return the definition in Python of what ``torch.ops`` has; None where there is none."""
    definitions = sys.modules[_DEFINITIONS].OPDEFS if _DEFINITIONS in sys.modules else {}
    name = str(getattr(operator, "overloadpacket", operator)).replace(".", "::", 1)
    return definitions.get(name)


def _found_in_torch(name: str, _definition: Any) -> Any:
    return pkgutil.resolve_name(f"torch.ops.{name}")


def _defined_again(name: str, schema: str, tags: tuple[Any, ...]) -> Any:
    """Define an operator of which nothing is registered yet, or return the one that is there."""
    definitions = pkgutil.resolve_name(_DEFINITIONS)
    if name in definitions.OPDEFS:
        return definitions.OPDEFS[name]
    namespace, _, own_name = name.partition("::")
    return definitions.CustomOpDef(namespace, own_name, schema, _is_defined_later, tags)


def _is_defined_later(*_args: Any, **_named: Any) -> None:
    raise RuntimeError("an operator is called before it is defined again")


def _register(operator: Any, registered: _Registered) -> None:
    if operator._init_fn is not _is_defined_later:  # noqa: SLF001 - it was there already
        return
    operator._init_fn = registered.function  # noqa: SLF001 - as PyTorch sets it itself
    for device_type, body in registered.bodies.items():
        operator.register_kernel(device_type)(body)
    if registered.fake is not None:
        operator.register_fake(registered.fake)
    if registered.backward is not None:
        operator.register_autograd(registered.backward, setup_context=registered.setup_context)
    for device_type, dtype in registered.casts.items():
        operator.register_autocast(device_type, dtype)
