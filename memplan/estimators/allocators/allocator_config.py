"""Settings of the CUDA caching allocator, read from the string PyTorch takes them from.

Keys, defaults and permitted ranges are those of torch 2.13 (``c10/core/AllocatorConfig.h``); sizes in the string are
in MiB. Settings of pinned host memory and of locking change no device memory: they are accepted and not kept.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from memplan.errors import UsageError, hint_on_names
from memplan.torch_releases import release_of
from memplan.units import MIB, round_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

UNIT_BYTES = 512  # kMinBlockSize: every block is a multiple of this
SMALL_REQUEST_BYTES = MIB  # kSmallSize: rounded requests up to this go to the small pool
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer, also the page of an expandable segment of the small pool
_LARGE_REQUEST_BYTES = 10 * MIB  # kMinLargeAlloc: from here on a request gets a segment of its own size
_SEGMENT_STEP_BYTES = 2 * MIB  # kRoundLarge: those segments are multiples of this
_DIVISION_SLOTS = 16  # one per power of two from 1 MiB; the last also covers everything above
_FIRST_SLOT_LOG2 = 20
_NON_SPLIT_ROUNDING_BYTES = 20 * MIB

_ENVIRONMENT_KEYS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # in order of preference
_FIRST_BY_AGE = (2, 12)


class SegmentOrder(StrEnum):
    """Which of equally large free blocks of several segments is used."""

    AGE = "that of the oldest segment"
    ADDRESS = "that of the lowest address"

    @classmethod
    def of_torch(cls, version: str) -> SegmentOrder:
        """Return the order of a version of torch, such as ``2.13.0+cu130``.

        PyTorch's pull requests 178362, in 2.12, and 183591, in 2.13. The first compares ages of blocks, not of
        segments, which is taken for the same here.
        """
        return cls.AGE if release_of(version) >= _FIRST_BY_AGE else cls.ADDRESS


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorConfig:
    """Settings of the caching allocator that change how much memory it takes; defaults are PyTorch's.

    Args:
        expandable_segments: whether segments grow page by page instead of being allocated whole.
        max_split_size_bytes: blocks of at least this size are never split; None splits blocks of any size.
        max_non_split_rounding_bytes: a request above ``max_split_size_bytes`` may take a block up to this much larger.
        roundup_power2_divisions: steps per power of two that requests are rounded up to, for each of the 16 powers
            from 1 MiB; 0 rounds to 512 bytes.
        garbage_collection_threshold: share of the limit above which old free blocks are returned; 0 never does.
        large_segment_size_bytes: segment for requests between 1 and 10 MiB, and page of large expandable segments.
        per_process_memory_fraction: share of the card the allocator may take, for outcomes; replays take it in bytes.
        segment_order: no setting of PyTorch's, but of its version.

    Raises:
        UsageError: PyTorch would not accept the value.
    """

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None
    max_non_split_rounding_bytes: int = _NON_SPLIT_ROUNDING_BYTES
    roundup_power2_divisions: tuple[int, ...] = (0,) * _DIVISION_SLOTS
    garbage_collection_threshold: float = 0.0
    large_segment_size_bytes: int = 20 * MIB
    per_process_memory_fraction: float = 1.0
    segment_order: SegmentOrder = SegmentOrder.AGE

    def __post_init__(self) -> None:
        if self.large_segment_size_bytes <= _LARGE_REQUEST_BYTES:
            raise _out_of_range("large_segment_size_mb", self.large_segment_size_bytes // MIB, "must be above 10")
        if self.max_split_size_bytes is not None:
            self._check_above_segment("max_split_size_mb", self.max_split_size_bytes)
        if self.max_non_split_rounding_bytes != _NON_SPLIT_ROUNDING_BYTES:
            self._check_above_segment("max_non_split_rounding_mb", self.max_non_split_rounding_bytes)
        if not 0 <= self.garbage_collection_threshold < 1:
            rule = "must be above 0 and below 1"
            raise _out_of_range("garbage_collection_threshold", self.garbage_collection_threshold, rule)
        if not 0 < self.per_process_memory_fraction <= 1:
            rule = "must be above 0 and at most 1"
            raise _out_of_range("per_process_memory_fraction", self.per_process_memory_fraction, rule)
        _check_divisions(self.roundup_power2_divisions)

    def _check_above_segment(self, key: str, size_bytes: int) -> None:
        if size_bytes < self.large_segment_size_bytes:
            rule = f"must be at least large_segment_size_mb, here {self.large_segment_size_bytes // MIB}"
            raise _out_of_range(key, size_bytes // MIB, rule)

    @classmethod
    def parse(cls, text: str) -> AllocatorConfig:
        """Read settings such as ``expandable_segments:True,max_split_size_mb:128``; empty text is the defaults.

        Raises:
            UsageError: a key is unknown or its value is not permitted.
        """
        settings: dict[str, Any] = {}
        for key, value in _split_settings(text):
            if key in _READERS:
                field, read = _READERS[key]
                settings[field] = read(key, value)
            elif key == "backend" and value != "native":
                raise _out_of_range(key, value, "is not modelled; only backend:native is")
            elif key not in _WITHOUT_EFFECT:
                raise _unknown(key, value)
        return cls(**settings)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, torch_version: str) -> AllocatorConfig:
        """Read the settings a process with these variables and this torch would use; none set is the defaults."""
        found = cls.parse(next((environment[key] for key in _ENVIRONMENT_KEYS if environment.get(key)), ""))
        return replace(found, segment_order=SegmentOrder.of_torch(torch_version))

    def rounded_bytes(self, requested_bytes: int) -> int:
        """Return the block size for a request of at least one byte (``round_size`` of the caching allocator)."""
        if requested_bytes < UNIT_BYTES:
            return UNIT_BYTES
        floor_log2 = requested_bytes.bit_length() - 1
        slot = min(max(floor_log2 - _FIRST_SLOT_LOG2, 0), _DIVISION_SLOTS - 1)
        divisions = self.roundup_power2_divisions[slot]
        if divisions > 1 and requested_bytes > UNIT_BYTES * divisions:
            return round_up(requested_bytes, (1 << floor_log2) // divisions)
        return round_up(requested_bytes, UNIT_BYTES)

    def segment_bytes(self, rounded_bytes: int) -> int:
        """Return what is asked of the driver for a block of this rounded size."""
        if rounded_bytes <= SMALL_REQUEST_BYTES:
            return SMALL_SEGMENT_BYTES
        if rounded_bytes < _LARGE_REQUEST_BYTES:
            return self.large_segment_size_bytes
        return round_up(rounded_bytes, _SEGMENT_STEP_BYTES)


def _check_divisions(divisions: tuple[int, ...]) -> None:
    if len(divisions) != _DIVISION_SLOTS:
        raise _out_of_range("roundup_power2_divisions", list(divisions), f"needs {_DIVISION_SLOTS} values")
    for each in divisions:
        if each < 0 or each & (each - 1):
            raise _out_of_range("roundup_power2_divisions", each, "must be a power of two, or 0 for none")


def _split_settings(text: str) -> list[tuple[str, str]]:
    """Split ``key:value`` pairs at the commas that are not inside square brackets."""
    pairs = []
    for setting in re.split(r",(?![^\[]*\])", text.replace(" ", "")):
        key, colon, value = setting.partition(":")
        if colon:
            pairs.append((key, value))
        elif key:
            raise UsageError(f"allocator setting {key!r} has no value", hint="write it like max_split_size_mb:128")
    return pairs


def _read_switch(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise _out_of_range(key, value, "must be True or False")
    return value == "True"


def _read_mib(key: str, value: str) -> int:
    return _read_whole(key, value) * MIB


def _read_whole(key: str, value: str) -> int:
    if not value.isascii() or not value.isdigit():
        raise _out_of_range(key, value, "must be a whole number")
    return int(value)


def _read_share(key: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise _out_of_range(key, value, "must be a number above 0 and at most 1")
    return share


def _read_divisions(key: str, value: str) -> tuple[int, ...]:
    """Read one number for all sizes, or ``[256:1,512:2,>:8]`` with lower bounds in MiB."""
    if not value.startswith("["):
        if value == "0":
            raise _out_of_range(key, value, "must be a power of two")
        return (_read_whole(key, value),) * _DIVISION_SLOTS
    if not value.endswith("]"):
        raise _out_of_range(key, value, "must end with a closing bracket")
    divisions = [0] * _DIVISION_SLOTS
    last_slot, any_bound = 0, False
    for entry in value[1:-1].split(","):
        bound, _, count = entry.partition(":")
        division = _read_whole(key, count)
        if bound == ">":
            divisions[last_slot + 1 :] = [division] * (_DIVISION_SLOTS - last_slot - 1)
            continue
        slot = _division_slot(key, bound)
        if not any_bound:  # sizes below the first bound follow it
            divisions[:slot] = [division] * slot
        divisions[slot] = division
        last_slot, any_bound = slot, True
    return tuple(divisions)


def _division_slot(key: str, bound: str) -> int:
    size_mib = _read_whole(key, bound)
    if size_mib < 1 or size_mib & (size_mib - 1):
        raise _out_of_range(key, bound, "bounds must be powers of two, in MiB")
    return min(size_mib.bit_length() - 1, _DIVISION_SLOTS - 1)


def _out_of_range(key: str, value: object, rule: str) -> UsageError:
    return UsageError(f"allocator setting {key}:{value} {rule}")


def _unknown(key: str, value: str) -> UsageError:
    hint = hint_on_names(key, (*_READERS, *_WITHOUT_EFFECT))
    return UsageError(f"allocator setting {key}:{value} is not known", hint=hint)


_READERS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "expandable_segments": ("expandable_segments", _read_switch),
    "max_split_size_mb": ("max_split_size_bytes", _read_mib),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _read_mib),
    "roundup_power2_divisions": ("roundup_power2_divisions", _read_divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _read_share),
    "large_segment_size_mb": ("large_segment_size_bytes", _read_mib),
    "per_process_memory_fraction": ("per_process_memory_fraction", _read_share),
}
_WITHOUT_EFFECT = (
    "backend",
    "graph_capture_record_stream_reuse",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "throw_on_cudamalloc_oom",
)
