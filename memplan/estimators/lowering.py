"""Lowering this process to the target device: what is traced afterwards takes the paths the card would take."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from memplan.cards import DeviceKind
from memplan.estimators.cuda_autocast import CudaAutocast
from memplan.estimators.cuda_operators import CudaOperators
from memplan.estimators.cuda_words import CudaWords, understand_cuda_autocast
from memplan.estimators.shape_rules import install_shape_rules

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

    from memplan.cards import DeviceSpec

ASSUMED_CAPABILITY = (8, 0)

# Operator, or class of a module -> what its library takes on a card. cuDNN chooses these sizes at run time.
_UNCOUNTED = {
    "aten.convolution": "cuDNN convolution workspaces",
    "aten.native_batch_norm": "cuDNN batch-norm reserve",
    "LSTM": "cuDNN RNN workspace",
    "GRU": "cuDNN RNN workspace",
    "RNN": "cuDNN RNN workspace",
}


def lower_to(device: DeviceSpec) -> None:
    """Make this process trace what the device would run."""
    install_shape_rules()
    capability = lowered_capability(device)
    if capability is not None:
        CudaOperators(capability).install()
        CudaAutocast().install()
        understand_cuda_autocast()


def cuda_words_understood(device: DeviceSpec) -> AbstractContextManager[object]:
    """Read CUDA devices in user code as the traced device while the context is open; nothing changes for the CPU."""
    return nullcontext() if device.kind is DeviceKind.CPU else CudaWords()


def lowered_capability(device: DeviceSpec) -> tuple[int, int] | None:
    """Return the compute capability to lower to; None for the CPU."""
    if device.kind is DeviceKind.CPU:
        return None
    return device.compute_capability or ASSUMED_CAPABILITY


def lowering_notes(device: DeviceSpec) -> tuple[str, ...]:
    """Say what had to be assumed about the device."""
    if device.kind is DeviceKind.CPU or device.compute_capability is not None:
        return ()
    major, minor = ASSUMED_CAPABILITY
    return (f"Compute capability {major}.{minor} is assumed, because only the size of {device.name} is known.",)


def uncounted_on(device: DeviceSpec, names: Collection[str]) -> tuple[str, ...]:
    """Say what libraries take on a card for these operators and classes of modules that no rule counts."""
    if device.kind is DeviceKind.CPU:
        return ()
    return tuple(dict.fromkeys(what for name, what in _UNCOUNTED.items() if name in names))
