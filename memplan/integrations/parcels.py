"""The user's objects on their way to a child process: pickled by value, without what their weights hold.

A model may be gigabytes, and what a training step needs depends on the shapes of its weights, not on their values. So
parameters travel as their shape and spread and arrive as noise of that spread; constants, such as the ones and zeros
of normalisation layers and biases, arrive as they are. Buffers travel whole: they hold masks and tables.
"""

from __future__ import annotations

import io
import math
import pickle
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch import nn

from memplan.errors import UsageError

_SAMPLED_ELEMENTS = 1 << 16
_VERBATIM_ELEMENTS = 16
_UNKNOWN_SPREAD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """Pickled objects of the caller's process.

    Args:
        payload: cloudpickle bytes in which parameters are blank.
    """

    payload: bytes

    def opened(self) -> Any:
        """Rebuild the objects, a new copy every time, on the CPU."""
        return pickle.loads(self.payload)  # noqa: S301 - made by the caller's own process


def parcel(what: str, value: object) -> Parcel:
    """Pickle an object; nothing of it is changed or copied to another device.

    Args:
        what: what to call it in messages.
        value: any object that cloudpickle can carry.

    Raises:
        UsageError: it cannot be pickled.
    """
    stream = io.BytesIO()
    try:
        _Packer(stream).dump(value)
    except Exception as error:
        raise UsageError(
            f"the {what} cannot be handed to a child process: {type(error).__name__}: {error}",
            hint="it must not hold open files, locks or generators",
        ) from error
    return Parcel(payload=stream.getvalue())


class _Packer(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is nn.Parameter and obj.is_floating_point() and obj.numel() > _VERBATIM_ELEMENTS:
            mean, spread = _mean_and_spread(obj)
            return _blank, (tuple(obj.shape), obj.dtype, obj.requires_grad, mean, spread), dict(obj.__dict__) or None
        if isinstance(obj, torch.Tensor) and obj.device.type not in ("cpu", "meta"):
            return _same, (obj.detach().cpu(), obj.requires_grad, isinstance(obj, nn.Parameter))
        return super().reducer_override(obj)


def _mean_and_spread(parameter: nn.Parameter) -> tuple[float, float]:
    """Return a constant and 0, or 0 and the standard deviation of the first values to the nearest power of two."""
    if parameter.device.type == "meta":
        return 0.0, _UNKNOWN_SPREAD
    values = parameter.detach().reshape(-1)[:_SAMPLED_ELEMENTS].cpu().float()
    if bool((values == values[0]).all()):
        return float(values[0]), 0.0
    spread = float(values.std())
    return 0.0, 2.0 ** round(math.log2(spread)) if 0 < spread < math.inf else _UNKNOWN_SPREAD


def _blank(shape: tuple[int, ...], dtype: torch.dtype, requires_grad: bool, mean: float, spread: float) -> nn.Parameter:
    values = torch.empty(shape, dtype=dtype)
    if spread:
        values.normal_(mean, spread)
    else:
        values.fill_(mean)
    return nn.Parameter(values, requires_grad=requires_grad)


def _same(tensor: torch.Tensor, requires_grad: bool, is_parameter: bool) -> torch.Tensor:
    return nn.Parameter(tensor, requires_grad=requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)
