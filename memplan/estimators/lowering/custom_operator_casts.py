"""CUDA's autocast of operators that are written in Python (``torch.library.register_autocast``).

Traces run on fake CPU tensors, so that the CPU's autocast stands for CUDA's; see ``cuda_autocast``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._library.custom_ops import OPDEFS, CustomOpDef

from memplan.children.custom_operators import autocast_types

if TYPE_CHECKING:
    import torch

_IN_PLACE_OF = {"cuda": "cpu", "cpu": "cuda"}


def cast_as_registered_for_cuda() -> None:
    """Have such operators cast on the CPU as is registered for CUDA, and the reverse, until this process ends.

    One that was registered for both before keeps the CPU's rule.
    """
    for operator in list(OPDEFS.values()):
        if "cuda" in (types := autocast_types(operator)):
            operator.register_autocast("cpu", types["cuda"])
    definition: Any = CustomOpDef
    registering = definition.register_autocast

    def register(operator: CustomOpDef, device_type: str, cast_inputs: torch.dtype) -> Any:
        return registering(operator, _IN_PLACE_OF.get(device_type, device_type), cast_inputs)

    definition.register_autocast = register
