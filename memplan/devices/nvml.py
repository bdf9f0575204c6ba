"""The one gateway to the NVIDIA driver: every call of its management library (NVML, ``nvidia-ml-py``) and every error.

The library is opened once per process and stays open: opening it can take a second on an idle card.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.errors import DeviceError, NoDriverError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_CONTROL_DEVICE = Path("/dev/nvidiactl")  # in a container only where it was given a card


@functools.cache
def library() -> Any:
    """Open NVML.

    Raises:
        NoDriverError: there is no driver or no management library.
        DeviceError: the driver does not answer.
    """
    nvml = _bindings()
    query(nvml.nvmlInit)
    return nvml


def _bindings() -> Any:
    import pynvml  # noqa: PLC0415 - only where a card is asked for: most commands never need the driver

    return pynvml


def query(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML; turns each of its errors into one of memplan's.

    Raises:
        NoDriverError: this machine has no NVIDIA driver.
        DeviceError: the call fails.
    """
    nvml = _bindings()
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        raise _explained(error, nvml) from error


def query_if_supported(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML for what not every card reports: None where this one does not, for any reason but its own failure.

    Virtual machines, WSL and sandboxes return all kinds of error codes for what they do not pass on; the bindings raise
    an error class of their own for drivers older than the call, and cannot decode every process name.

    Raises:
        NoDriverError: this machine has no NVIDIA driver.
        DeviceError: card or driver has failed.
    """
    nvml = _bindings()
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if error.value in _fatal_codes(nvml):
            raise _explained(error, nvml) from error
        return None
    except (nvml.NVMLLibraryMismatchError, UnicodeDecodeError):
        return None


def query_if_the_card_has(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML for what some cards do not have: None where the driver says that this is such a one.

    Raises:
        NoDriverError: this machine has no NVIDIA driver.
        DeviceError: the call fails for another reason.
    """
    nvml = _bindings()
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
            return None
        raise _explained(error, nvml) from error


def _fatal_codes(nvml: Any) -> Iterable[int]:
    return (
        nvml.NVML_ERROR_UNINITIALIZED,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        nvml.NVML_ERROR_GPU_IS_LOST,
        nvml.NVML_ERROR_RESET_REQUIRED,
    )


def _explained(error: Any, nvml: Any) -> DeviceError:
    if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND and _CONTROL_DEVICE.exists():
        return DeviceError(
            "there is an NVIDIA driver, but not its management library (libnvidia-ml.so.1)",
            hint="a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility; or use --device cpu",
        )
    if error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
        return NoDriverError(
            "this machine has no NVIDIA driver", hint="plan for a card by name, such as --device rtx-3090, or use cpu"
        )
    if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return DeviceError("the NVIDIA driver was updated while it was loaded", hint="restart the machine")
    if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
        return DeviceError(f"an NVIDIA card does not answer: {error}", hint="restart the machine")
    return DeviceError(f"the NVIDIA driver does not answer: {error}", hint="see whether nvidia-smi works here")
