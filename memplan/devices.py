"""Live devices: the only place that talks to the NVIDIA driver, and the one that turns ``--device`` into a value.

Readings come from NVML (``nvidia-ml-py``). What a card or a container does not tell is None with a reason. The
management library is opened once per process and stays open: opening it can take a second on an idle card.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.card_context import context_bytes
from memplan.card_readings import BytesReading, CardProcess, CardReading
from memplan.cards import DeviceKind, DeviceSpec, card_of_size, find_card
from memplan.errors import DeviceError, NoDriverError, UnitError, UsageError
from memplan.host_memory import host_memory
from memplan.processor import half_formats
from memplan.results import ContextBasis
from memplan.units import format_bytes
from memplan.visible_cards import visible_positions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_CONTROL_DEVICE = Path("/dev/nvidiactl")  # in a container only where it was given a card
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_HOST_PIDS = "this process runs in a process-id namespace of its own (a container); NVML lists the host's ids"
_NOT_TOLD = "the driver does not tell the memory of single processes here (WSL, MIG or missing permission)"


def read_cards() -> tuple[CardReading, ...]:
    """Read every card that CUDA shows to this process, in CUDA's order; none where all are hidden.

    Raises:
        NoDriverError: this machine has no NVIDIA driver.
        DeviceError: the driver does not answer.
    """
    return tuple(_read_card(index, handle) for index, handle in enumerate(_visible_handles()))


def device_used_bytes(card: int | str) -> BytesReading:
    """Read what all processes use on a card, by its CUDA index or UUID; None with a reason where NVML refuses."""
    try:
        return BytesReading(read_bytes=_memory(_handle(card)).used_bytes)
    except DeviceError as refusal:
        return BytesReading(read_bytes=None, missing_because=refusal.problem)


def process_used_bytes(card: int | str, pid: int) -> BytesReading:
    """Read what one process uses on a card: context, libraries and allocator, by the card's CUDA index or UUID."""
    try:
        processes, missing_because = _processes(_handle(card))
    except DeviceError as refusal:
        return BytesReading(read_bytes=None, missing_because=refusal.problem)
    if processes is None:
        return BytesReading(read_bytes=None, missing_because=missing_because)
    if not _sees_host_pids():
        return BytesReading(read_bytes=None, missing_because=_HOST_PIDS)
    for each in processes:
        if each.pid == pid:
            return BytesReading(read_bytes=each.used_bytes, missing_because=each.missing_because)
    return BytesReading(read_bytes=None, missing_because=f"process {pid} holds nothing on card {card}")


def card_uuid(index: int) -> str:
    """Return the driver's name for a card, or for a MIG slice of one, by its CUDA index.

    Raises:
        DeviceError: there is no such card, or the driver does not answer.
    """
    uuid: str = _asked(_library().nvmlDeviceGetUUID, _handle(index))
    return uuid


def default_cpu_budget_bytes() -> int:
    """Return what a step on the CPU may use: the smaller of free memory and what the control group leaves."""
    return host_memory().free_bytes


def resolve_device(text: str, *, budget_bytes: int | None = None) -> DeviceSpec:
    """Turn ``cuda:0``, ``cuda``, ``cpu``, a card's name, a size such as ``24GiB``, or ``auto`` into a device.

    ``auto`` is the first visible card, or the CPU where there is no driver or no visible card.

    Args:
        text: what the user wrote.
        budget_bytes: what a step on the CPU may use; None for what is free. Of no effect on cards.

    Raises:
        DeviceError: there is no such card, here or in the catalogue.
        UsageError: the budget of the CPU is more than the memory that is free.
    """
    wanted = text.strip().lower()
    if wanted == "cpu":
        return _cpu(budget_bytes)
    if wanted == "auto":
        return _first_card() or _cpu(budget_bytes)
    if wanted.partition(":")[0] in ("cuda", "gpu"):
        return _live_card(text, wanted.partition(":")[2])
    return _planned_card(text)


def _cpu(budget_bytes: int | None) -> DeviceSpec:
    free_bytes = default_cpu_budget_bytes()
    if budget_bytes is not None and budget_bytes > free_bytes:
        raise UsageError(
            f"budget {format_bytes(budget_bytes)} is more than the {format_bytes(free_bytes)} of free memory here",
            hint="trials would starve the machine; name less, or plan for a card by --device NAME or SIZE",
        )
    total_bytes = free_bytes if budget_bytes is None else budget_bytes
    return DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=total_bytes, half_formats=half_formats())


def _first_card() -> DeviceSpec | None:
    try:
        handles = _visible_handles()
    except NoDriverError:
        return None
    return _spec(0, handles[0]) if handles else None


def _live_card(text: str, number: str) -> DeviceSpec:
    if number and not (number.isascii() and number.isdigit()):
        raise DeviceError(f"device {text!r} is not understood", hint="write it like cuda:0")
    index = int(number or 0)
    return _spec(index, _handle(index))


def _planned_card(text: str) -> DeviceSpec:
    try:
        return find_card(text)
    except DeviceError as unknown:
        try:
            return card_of_size(text)
        except UnitError:
            raise unknown from None


def _spec(index: int, handle: Any) -> DeviceSpec:
    reading = _read_card(index, handle)
    known = _catalogued(reading.name)
    sm_count = known.sm_count if known else None
    capability = reading.compute_capability or (known.compute_capability if known else None)
    return DeviceSpec(
        name=reading.name,
        kind=DeviceKind.CUDA,
        total_bytes=reading.total_bytes,
        compute_capability=capability,
        sm_count=sm_count,
        context_bytes=context_bytes(capability, sm_count),
        context_basis=ContextBasis.CATALOGUE,
        driver_version=reading.driver_version,
        live_index=index,
    )


def _catalogued(name: str) -> DeviceSpec | None:
    try:
        return find_card(name)
    except DeviceError:
        return None


def _handle(card: int | str) -> Any:
    return _asked(_library().nvmlDeviceGetHandleByUUID, card) if isinstance(card, str) else _visible_handle(card)


def _visible_handle(index: int) -> Any:
    handles = _visible_handles()
    if index >= len(handles):
        setting = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = "" if setting is None else f" with CUDA_VISIBLE_DEVICES={setting!r}"
        raise DeviceError(
            f"device cuda:{index} does not exist; {len(handles)} NVIDIA cards are visible{hidden}",
            hint="see memplan gpus",
        )
    return handles[index]


def _visible_handles() -> tuple[Any, ...]:
    nvml = _library()
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is not None and setting.startswith("MIG-"):  # CUDA shows the first instance only
        handle = _told(nvml.nvmlDeviceGetHandleByUUID, setting.split(",")[0].strip())
        return () if handle is None else (handle,)
    handles = [_asked(nvml.nvmlDeviceGetHandleByIndex, each) for each in range(_asked(nvml.nvmlDeviceGetCount))]
    uuids = [_asked(nvml.nvmlDeviceGetUUID, each) for each in handles]
    return _shown([handles[position] for position in visible_positions(setting, uuids)])


def _shown(handles: Sequence[Any]) -> tuple[Any, ...]:
    """Return what CUDA shows of some cards: the first slice alone where there is one, and no sliced card as a whole.

    Source: NVIDIA Multi-Instance GPU User Guide, "CUDA Device Enumeration".
    """
    whole: list[Any] = []
    slices: list[Any] = []
    for handle in handles:
        if _is_sliced(handle):
            slices += _slices(handle)
        else:
            whole.append(handle)
    return tuple(slices[:1] or whole)


def _is_sliced(handle: Any) -> bool:
    nvml = _library()
    mode = _told(nvml.nvmlDeviceGetMigMode, handle)  # the current one and that after a restart
    return mode is not None and bool(mode[0] == nvml.NVML_DEVICE_MIG_ENABLE)


def _slices(handle: Any) -> list[Any]:
    nvml = _library()
    places = range(_told(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
    found = (_told(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, each) for each in places)
    return [each for each in found if each is not None]


def _read_card(index: int, handle: Any) -> CardReading:
    nvml = _library()
    memory = _memory(handle)
    utilisation = _told(nvml.nvmlDeviceGetUtilizationRates, handle)
    processes, missing_because = _processes(handle)
    return CardReading(
        index=index,
        name=_asked(nvml.nvmlDeviceGetName, handle),
        uuid=_asked(nvml.nvmlDeviceGetUUID, handle),
        total_bytes=memory.total_bytes,
        used_bytes=memory.used_bytes,
        free_bytes=memory.total_bytes - memory.used_bytes,
        utilisation_percent=None if utilisation is None else utilisation.gpu,
        temperature_celsius=_told(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        compute_capability=_compute_capability(handle),
        driver_version=_told(nvml.nvmlSystemGetDriverVersion),
        processes=processes,
        processes_missing_because=missing_because,
    )


def _compute_capability(handle: Any) -> tuple[int, int] | None:
    """Read the compute capability of a card, or of the card that this is a slice of."""
    nvml = _library()
    own: tuple[int, int] | None = _told(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    if own is not None:
        return own
    card = _told(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
    return None if card is None else _told(nvml.nvmlDeviceGetCudaComputeCapability, card)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CardMemory:
    total_bytes: int
    used_bytes: int


def _memory(handle: Any) -> _CardMemory:
    """Read a card's memory as CUDA counts it: without the part the driver reserves, which older drivers do not tell."""
    nvml = _library()
    detailed = _told(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    if detailed is None:
        plain = _asked(nvml.nvmlDeviceGetMemoryInfo, handle)
        return _CardMemory(total_bytes=plain.total, used_bytes=plain.total - plain.free)
    total_bytes = detailed.total - detailed.reserved
    return _CardMemory(total_bytes=total_bytes, used_bytes=max(total_bytes - detailed.free, 0))


def _processes(handle: Any) -> tuple[tuple[CardProcess, ...] | None, str | None]:
    nvml = _library()
    computing = _told(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    drawing = _told(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
    if computing is None and drawing is None:
        return None, "the driver does not list processes here (WSL, MIG or missing permission)"
    largest: dict[int, int | None] = {}
    for each in (*(computing or ()), *(drawing or ())):  # a process that does both is listed twice
        known = largest.get(each.pid)
        largest[each.pid] = each.usedGpuMemory if known is None else max(known, each.usedGpuMemory or 0)
    return tuple(_process(pid, used_bytes) for pid, used_bytes in sorted(largest.items())), None


def _process(pid: int, used_bytes: int | None) -> CardProcess:
    name = _told(_library().nvmlSystemGetProcessName, pid) if _sees_host_pids() else None
    return CardProcess(
        pid=pid, name=name, used_bytes=used_bytes, missing_because=_NOT_TOLD if used_bytes is None else None
    )


def _sees_host_pids() -> bool:
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
    except OSError:
        return True  # not Linux: there are no namespaces


@functools.cache
def _library() -> Any:
    """Open NVML.

    Raises:
        NoDriverError: there is no driver or no management library.
        DeviceError: the driver does not answer.
    """
    nvml = _bindings()
    _asked(nvml.nvmlInit)
    return nvml


def _bindings() -> Any:
    import pynvml  # noqa: PLC0415 - only where a card is asked for: most commands never need the driver

    return pynvml


def _asked(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML; every one of its errors becomes one of memplan's here."""
    nvml = _bindings()
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        raise _explained(error, nvml) from error


def _told(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML for what a card need not tell: None where this one does not, for whatever reason but its own failure.

    Virtual machines, WSL and sandboxes give codes of all kinds for what they do not pass on; the bindings have a class
    of their own for drivers older than a call, and cannot decode every process name.
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
