"""How the allocators of a process are set: CUDA's caching allocator, and the C library's heap on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan.estimators.allocators.allocator_config import AllocatorConfig
from memplan.estimators.allocators.host_heap import HeapConfig

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """Settings of both allocators; the defaults are PyTorch's and glibc's.

    Args:
        cuda: of the caching allocator; without effect on the CPU.
        heap: of glibc's malloc; without effect on a card.
    """

    cuda: AllocatorConfig = field(default_factory=AllocatorConfig)
    heap: HeapConfig = field(default_factory=HeapConfig)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> AllocatorSettings:
        """Read the variables that PyTorch and glibc read."""
        return cls(cuda=AllocatorConfig.from_environment(environment), heap=HeapConfig.from_environment(environment))


DEFAULT_SETTINGS = AllocatorSettings()
