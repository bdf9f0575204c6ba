"""Operators that are written in Python (``torch.library.custom_op``), whose bodies run further operators.

PyTorch sees one operator, and on fake tensors takes its result from a function that allocates nothing else. Its body
runs below autograd, so that nothing in it is saved for the backward pass (``torch/_library/custom_ops.py``).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch._library.custom_ops import _maybe_get_opdef

if TYPE_CHECKING:
    from collections.abc import Callable

_ANY_DEVICE = None  # by which a body is known that serves all devices
_DIVIDING = "torch_nn::_linear_cross_entropy_batch_chunked"  # and what begins so; of ``linear_cross_entropy``


@functools.cache
def body_of(operator: Any, device_type: str) -> Callable[..., Any] | None:
    """Return the function that an operator runs on a device; None for operators that are not written in Python.

    Args:
        operator: with its overload.
        device_type: as PyTorch calls the kind of device.
    """
    definition = _maybe_get_opdef(operator)
    if definition is None:
        return None
    bodies = definition._backend_fns  # noqa: SLF001 - in no public attribute
    return bodies.get(device_type) or bodies.get(_ANY_DEVICE)


def divides_batch(operator: Any) -> bool:
    """Whether an operator runs in chunks whose number and size are not linear in the micro-batch."""
    name: str = operator._schema.name  # noqa: SLF001 - in no public attribute
    return name.startswith(_DIVIDING)
