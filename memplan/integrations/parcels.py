"""The user's objects on their way to a child process: pickled by value, without the values of their weights.

A model may be gigabytes, and what a training step needs depends on the shapes of its weights, not on their values. So
parameters travel as shape and standard deviation and arrive as noise of that size; constants, such as the ones and
zeros of normalisation layers and biases, arrive as they are. Buffers travel whole: they hold masks and tables.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import torch
from torch import nn

from memplan.children.pickling import CallablePickler

_SAMPLED_ELEMENTS = 1 << 16
_VERBATIM_ELEMENTS = 16
_UNKNOWN_SPREAD = 0.02


class Parcel:
    """An object that is pickled without the values of its weights when it travels, and rebuilt when it is opened.

    Args:
        value: any object that cloudpickle can carry; nothing of it is changed or copied to another device.
    """

    def __init__(self, value: object) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        stream = io.BytesIO()
        _Packer(stream).dump(self._value)
        return _ArrivedParcel, (stream.getvalue(),)

    def digest_parts(self) -> object:
        """Return the content of the parcel's digest: a Hugging Face dataset's own fingerprint, or the object."""
        return getattr(self._value, "_fingerprint", self._value)

    def opened(self) -> Any:
        """Return the object."""
        return self._value


class _ArrivedParcel(Parcel):
    """A parcel in the process it was sent to: every opening makes a new copy, on the CPU."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(None)
        self._payload = payload

    def __reduce__(self) -> tuple[Any, ...]:
        return _ArrivedParcel, (self._payload,)

    def digest_parts(self) -> object:
        return self._payload

    def opened(self) -> Any:
        return pickle.loads(self._payload)  # noqa: S301 - made by the caller's own process


class _Packer(CallablePickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is nn.Parameter and obj.is_floating_point() and obj.numel() > _VERBATIM_ELEMENTS:
            return _blank, (tuple(obj.shape), obj.dtype, _mean_and_spread(obj), obj.requires_grad, dict(obj.__dict__))
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


def _blank(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    mean_and_spread: tuple[float, float],
    requires_grad: bool,
    attributes: dict[str, Any],
) -> nn.Parameter:
    values, (mean, spread) = torch.empty(shape, dtype=dtype), mean_and_spread
    if spread:
        values.normal_(mean, spread)
    else:
        values.fill_(mean)
    parameter = nn.Parameter(values, requires_grad=requires_grad)
    parameter.__dict__.update(attributes)
    return parameter


def _same(tensor: torch.Tensor, requires_grad: bool, is_parameter: bool) -> torch.Tensor:
    return nn.Parameter(tensor, requires_grad=requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)
