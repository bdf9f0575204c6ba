"""A stand-in for the NVIDIA driver's library, below the real pynvml.

Only what ``libnvidia-ml.so.1`` would answer is made up; pynvml's constants, structures and error classes are real.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import pynvml

from memplan.units import GIB, MIB

UNAVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
HANDLE_STEP = 0x1000


@dataclass
class FakeCard:
    name: str = "NVIDIA GeForce RTX 3090"
    uuid: str = "GPU-11111111-aaaa-bbbb-cccc-000000000000"
    total: int = 24 * GIB
    reserved: int = 312 * MIB
    free: int = 20 * GIB
    capability: tuple[int, int] = (8, 6)
    utilisation: int = 37
    temperature: int = 61
    computing: dict[int, int] = field(default_factory=dict)
    drawing: dict[int, int] = field(default_factory=dict)
    is_sliced: bool = False
    slice_of: int | None = None  # position of the card; slices come after all cards
    fails: dict[str, int] = field(default_factory=dict)  # function -> NVML_ERROR_...


@dataclass
class FakeDriver:
    """Every attribute pynvml looks up is a function of the library; a missing one means an old driver."""

    cards: list[FakeCard]
    process_names: dict[int, str] = field(default_factory=dict)
    init_error: int = pynvml.NVML_SUCCESS
    lacks: tuple[str, ...] = ()

    def __getattr__(self, function: str) -> Any:
        answer = _ANSWERS.get(function)
        if answer is None or function in self.lacks:
            raise AttributeError(function)  # as ctypes does for a symbol the library lacks
        return lambda *arguments: answer(self, function, *arguments)


def _init(driver: FakeDriver, _function: str, _flags: Any) -> int:
    return driver.init_error


def _text(value: str, buffer: Any) -> int:
    buffer.value = value.encode()
    return pynvml.NVML_SUCCESS


def _of_card(answer: Any) -> Any:
    def call(driver: FakeDriver, function: str, handle: Any, *arguments: Any) -> int:
        card = driver.cards[_place(handle)]
        return card.fails.get(function) or answer(card, *arguments)

    return call


def _open(driver: FakeDriver, position: int, slot: Any) -> int:
    if position >= len(driver.cards):
        return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    ctypes.cast(slot, ctypes.POINTER(ctypes.c_void_p))[0] = HANDLE_STEP * (position + 1)
    return pynvml.NVML_SUCCESS


def _by_index(driver: FakeDriver, _function: str, index: Any, slot: Any) -> int:
    return _open(driver, index.value, slot)


def _by_uuid(driver: FakeDriver, _function: str, uuid: Any, slot: Any) -> int:
    uuids = [card.uuid.encode() for card in driver.cards]
    return _open(driver, uuids.index(uuid.value), slot) if uuid.value in uuids else pynvml.NVML_ERROR_NOT_FOUND


def _count(driver: FakeDriver, _function: str, slot: Any) -> int:
    slot._obj.value = sum(card.slice_of is None for card in driver.cards)
    return pynvml.NVML_SUCCESS


def _place(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0) // HANDLE_STEP - 1


def _slice_by_index(driver: FakeDriver, _function: str, handle: Any, index: Any, slot: Any) -> int:
    places = [place for place, card in enumerate(driver.cards) if card.slice_of == _place(handle)]
    return _open(driver, places[index.value], slot) if index.value < len(places) else pynvml.NVML_ERROR_NOT_FOUND


def _card_of_slice(driver: FakeDriver, _function: str, handle: Any, slot: Any) -> int:
    position = driver.cards[_place(handle)].slice_of
    return int(pynvml.NVML_ERROR_INVALID_ARGUMENT) if position is None else _open(driver, position, slot)


def _slice_mode(card: FakeCard, current: Any, pending: Any) -> int:
    current._obj.value = pending._obj.value = card.is_sliced
    return pynvml.NVML_SUCCESS


def _most_slices(_card: FakeCard, slot: Any) -> int:
    slot._obj.value = 7
    return pynvml.NVML_SUCCESS


def _version(_driver: FakeDriver, _function: str, buffer: Any, _length: Any) -> int:
    return _text("580.65.06", buffer)


def _process_name(driver: FakeDriver, _function: str, pid: Any, buffer: Any, _length: Any) -> int:
    if pid.value not in driver.process_names:
        return int(pynvml.NVML_ERROR_NOT_FOUND)
    return _text(driver.process_names[pid.value], buffer)


def _memory(card: FakeCard, slot: Any) -> int:
    memory = slot._obj
    memory.total, memory.free, memory.used = card.total, card.free, card.total - card.free
    return pynvml.NVML_SUCCESS


def _memory_v2(card: FakeCard, slot: Any) -> int:
    memory = slot._obj
    memory.total, memory.reserved, memory.free = card.total, card.reserved, card.free
    memory.used = card.total - card.free - card.reserved
    return pynvml.NVML_SUCCESS


def _utilisation(card: FakeCard, slot: Any) -> int:
    slot._obj.gpu = card.utilisation
    return pynvml.NVML_SUCCESS


def _temperature(card: FakeCard, _sensor: Any, slot: Any) -> int:
    slot._obj.value = card.temperature
    return pynvml.NVML_SUCCESS


def _capability(card: FakeCard, major: Any, minor: Any) -> int:
    major._obj.value, minor._obj.value = card.capability
    return pynvml.NVML_SUCCESS


def _listed(processes: dict[int, int], count: Any, array: Any) -> int:
    if array is None:
        count._obj.value = len(processes)
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE if processes else pynvml.NVML_SUCCESS)
    for slot, (pid, used) in zip(array, processes.items(), strict=False):
        slot.pid, slot.usedGpuMemory = pid, used
    count._obj.value = len(processes)
    return pynvml.NVML_SUCCESS


_ANSWERS: dict[str, Any] = {
    "nvmlInitWithFlags": _init,
    "nvmlDeviceGetCount_v2": _count,
    "nvmlDeviceGetHandleByIndex_v2": _by_index,
    "nvmlDeviceGetHandleByUUID": _by_uuid,
    "nvmlSystemGetDriverVersion": _version,
    "nvmlSystemGetProcessName": _process_name,
    "nvmlDeviceGetMigMode": _of_card(_slice_mode),
    "nvmlDeviceGetMaxMigDeviceCount": _of_card(_most_slices),
    "nvmlDeviceGetMigDeviceHandleByIndex": _slice_by_index,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": _card_of_slice,
    "nvmlDeviceGetName": _of_card(lambda card, buffer, _length: _text(card.name, buffer)),
    "nvmlDeviceGetUUID": _of_card(lambda card, buffer, _length: _text(card.uuid, buffer)),
    "nvmlDeviceGetMemoryInfo": _of_card(_memory),
    "nvmlDeviceGetMemoryInfo_v2": _of_card(_memory_v2),
    "nvmlDeviceGetUtilizationRates": _of_card(_utilisation),
    "nvmlDeviceGetTemperature": _of_card(_temperature),
    "nvmlDeviceGetCudaComputeCapability": _of_card(_capability),
    "nvmlDeviceGetComputeRunningProcesses_v3": _of_card(lambda card, *slots: _listed(card.computing, *slots)),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _of_card(lambda card, *slots: _listed(card.drawing, *slots)),
}
