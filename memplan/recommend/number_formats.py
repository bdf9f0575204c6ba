"""Which number formats a device multiplies itself: what is worth comparing, what it lacks, why one is no faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.devices.cards import DeviceSpec

# The first matrix units: fp16 from compute capability 7.0, TF32 and bf16 from 8.0 (CUDA C++ Programming Guide, "Compute
# Capabilities").
_VOLTA, _AMPERE = (7, 0), (8, 0)
_UNITS_SINCE = {
    Precision.FP16: _VOLTA,
    Precision.FP16_TRUE: _VOLTA,
    Precision.TF32: _AMPERE,
    Precision.BF16: _AMPERE,
    Precision.BF16_TRUE: _AMPERE,
}


def named_together(said: str, reasons: Mapping[Precision, str]) -> list[str]:
    """Say something of precisions, if anything, with its reason; those of one reason are named together."""
    alike = {why: [each for each, other in reasons.items() if other == why] for why in reasons.values()}
    lead = f" {said}" if said else ""
    return [f"{', '.join(map(str, precisions))}{lead}: {why}" for why, precisions in alike.items()]


def precisions_of(device: DeviceSpec) -> tuple[Precision, ...]:
    """Return the number formats worth comparing on a device."""
    if device.kind is DeviceKind.CPU:
        return (Precision.FP32, Precision.BF16, Precision.FP16)
    if device.compute_capability is not None and device.compute_capability < _AMPERE:
        return (Precision.FP32, Precision.FP16)
    return (Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16)


def why_unsupported(precision: Precision, device: DeviceSpec) -> str | None:
    """Say why a device has no use for a number format; None where it has.

    fp16 is of use without matrix units too: it saves memory, and every card computes it.
    """
    if precision is Precision.TF32 and device.kind is DeviceKind.CPU:
        return "the CPU has no TF32 units"
    if device.kind is DeviceKind.CUDA and _arithmetic(precision) != "fp16" and _multiplies(precision, device) is False:
        return f"{device.name} has no {precision} units"
    return None


def why_no_faster(precision: Precision, device: DeviceSpec) -> str | None:
    """Return why a number format that was measured is no faster than fp32; None where the device does not show it.

    Missing units are known from the device; where it has them, what is said is only what remains.
    """
    if precision is Precision.FP32:
        return None
    multiplies, name = _multiplies(precision, device), _arithmetic(precision)
    on_cpu = device.kind is DeviceKind.CPU
    device_name = "the CPU" if on_cpu else device.name
    if multiplies is None:
        return None
    if not multiplies:
        missing = f"instructions for {name}" if on_cpu else f"{name} matrix units"
        return f"no faster, because {device_name} has no {missing} and computes it by way of fp32"
    rest = "kernels that make no use of that, or other work," if on_cpu else "casts, launches and other work"
    return f"no faster, although {device_name} multiplies {name} itself: {rest} take the time"


def _multiplies(precision: Precision, device: DeviceSpec) -> bool | None:
    """Whether a device has the units for a format; None where that is not known."""
    if precision is Precision.FP32:
        return True
    if device.kind is DeviceKind.CPU:
        return None if device.half_formats is None else _arithmetic(precision) in device.half_formats
    return None if device.compute_capability is None else device.compute_capability >= _UNITS_SINCE[precision]


def _arithmetic(precision: Precision) -> str:
    return precision.removesuffix("-true")
