"""The cards of this machine and what uses them now, from the driver; what it does not report is None with a reason."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.devices.card_readings import BytesReading, CardProcess, CardReading
from memplan.devices.host_memory import host_memory
from memplan.devices.nvml import library, query, query_if_supported, query_if_the_card_has
from memplan.devices.visible_cards import visible_positions
from memplan.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_HOST_PIDS = "this process runs in a process-id namespace of its own (a container); NVML lists the host's ids"
_NOT_TOLD = "the driver does not tell the memory of single processes here (WSL, MIG or missing permission)"


def read_cards() -> tuple[CardReading, ...]:
    """Read every card that CUDA shows to this process, in CUDA's order; none where all are hidden.

    Raises:
        NoDriverError: this machine has no NVIDIA driver.
        DeviceError: the driver does not answer.
    """
    return tuple(_reading(index, handle) for index, handle in enumerate(_visible_handles()))


def read_card(index: int) -> CardReading:
    """Read one card by its CUDA index.

    Raises:
        DeviceError: there is no such card, or the driver does not answer.
    """
    return _reading(index, _visible_handle(index))


def count_cards() -> int:
    """Count the cards that CUDA shows to this process.

    Raises:
        NoDriverError: this machine has no NVIDIA driver.
        DeviceError: the driver does not answer.
    """
    return len(_visible_handles())


def device_used_bytes(card: int | str) -> BytesReading:
    """Read what all processes use on a card, by its CUDA index or UUID; None with a reason where NVML refuses."""
    try:
        return BytesReading(read_bytes=_memory(_handle_of(card)).used_bytes)
    except DeviceError as refusal:
        return BytesReading(read_bytes=None, missing_because=refusal.problem)


def process_used_bytes(card: int | str, pid: int) -> BytesReading:
    """Read what one process uses on a card: context, libraries and allocator, by the card's CUDA index or UUID."""
    try:
        processes, missing_because = _processes(_handle_of(card))
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
    uuid: str = query(library().nvmlDeviceGetUUID, _visible_handle(index))
    return uuid


def _handle_of(card: int | str) -> Any:
    return query(library().nvmlDeviceGetHandleByUUID, card) if isinstance(card, str) else _visible_handle(card)


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
    nvml = library()
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is not None and setting.startswith("MIG-"):  # CUDA shows the first instance only
        handle = query_if_supported(nvml.nvmlDeviceGetHandleByUUID, setting.split(",")[0].strip())
        return () if handle is None else (handle,)
    handles = [query(nvml.nvmlDeviceGetHandleByIndex, each) for each in range(query(nvml.nvmlDeviceGetCount))]
    uuids = [query(nvml.nvmlDeviceGetUUID, each) for each in handles]
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
    nvml = library()
    mode = query_if_supported(nvml.nvmlDeviceGetMigMode, handle)  # the current one and that after a restart
    return mode is not None and bool(mode[0] == nvml.NVML_DEVICE_MIG_ENABLE)


def _slices(handle: Any) -> list[Any]:
    nvml = library()
    places = range(query_if_supported(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
    found = (query_if_supported(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, each) for each in places)
    return [each for each in found if each is not None]


def _reading(index: int, handle: Any) -> CardReading:
    nvml = library()
    memory = _memory(handle)
    utilisation = query_if_supported(nvml.nvmlDeviceGetUtilizationRates, handle)
    processes, missing_because = _processes(handle)
    return CardReading(
        index=index,
        name=query(nvml.nvmlDeviceGetName, handle),
        uuid=query(nvml.nvmlDeviceGetUUID, handle),
        total_bytes=memory.total_bytes,
        used_bytes=memory.used_bytes,
        free_bytes=memory.total_bytes - memory.used_bytes,
        utilisation_percent=None if utilisation is None else utilisation.gpu,
        temperature_celsius=query_if_supported(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        compute_capability=_compute_capability(handle),
        driver_version=query_if_supported(nvml.nvmlSystemGetDriverVersion),
        processes=processes,
        processes_missing_because=missing_because,
    )


def _compute_capability(handle: Any) -> tuple[int, int] | None:
    """Read the compute capability of a card, or of the card that this is a slice of."""
    nvml = library()
    own: tuple[int, int] | None = query_if_supported(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    if own is not None:
        return own
    card = query_if_supported(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
    return None if card is None else query_if_supported(nvml.nvmlDeviceGetCudaComputeCapability, card)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CardMemory:
    total_bytes: int
    used_bytes: int


def _memory(handle: Any) -> _CardMemory:
    """Read a card's memory as CUDA counts it: without what the driver reserves, which older drivers do not report.

    A card without memory of its own shares the host's, as in DGX Spark
    (https://docs.nvidia.com/dgx/dgx-spark/known-issues.html, on nvidia-smi).
    """
    nvml = library()
    detailed = query_if_supported(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    if detailed is None:
        plain = query_if_the_card_has(nvml.nvmlDeviceGetMemoryInfo, handle)
        if plain is None:
            host = host_memory()
            return _CardMemory(total_bytes=host.total_bytes, used_bytes=host.total_bytes - host.available_bytes)
        return _CardMemory(total_bytes=plain.total, used_bytes=plain.total - plain.free)
    total_bytes = detailed.total - detailed.reserved
    return _CardMemory(total_bytes=total_bytes, used_bytes=max(total_bytes - detailed.free, 0))


def _processes(handle: Any) -> tuple[tuple[CardProcess, ...] | None, str | None]:
    nvml = library()
    computing = query_if_supported(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    drawing = query_if_supported(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
    if computing is None and drawing is None:
        return None, "the driver does not list processes here (WSL, MIG or missing permission)"
    largest: dict[int, int | None] = {}
    for each in (*(computing or ()), *(drawing or ())):  # a process that does both is listed twice
        known = largest.get(each.pid)
        largest[each.pid] = each.usedGpuMemory if known is None else max(known, each.usedGpuMemory or 0)
    return tuple(_process(pid, used_bytes) for pid, used_bytes in sorted(largest.items())), None


def _process(pid: int, used_bytes: int | None) -> CardProcess:
    name = query_if_supported(library().nvmlSystemGetProcessName, pid) if _sees_host_pids() else None
    return CardProcess(
        pid=pid, name=name, used_bytes=used_bytes, missing_because=_NOT_TOLD if used_bytes is None else None
    )


def _sees_host_pids() -> bool:
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
    except OSError:
        return True  # not Linux: there are no namespaces
