"""How the allocators of a process are set: CUDA's caching allocator, and the C library's heap on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan.estimators.allocators.allocator_config import AllocatorConfig
from memplan.estimators.allocators.host_heap import HeapConfig

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessAllocators:
    """How both allocators of a process are set; by default as torch 2.13 and glibc do it.

    Args:
        cuda: the caching allocator; without effect on the CPU.
        heap: glibc's malloc; without effect on a card.
    """

    cuda: AllocatorConfig = field(default_factory=AllocatorConfig)
    heap: HeapConfig = field(default_factory=HeapConfig)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, torch_version: str) -> ProcessAllocators:
        """Read the variables that PyTorch, of this version, and glibc read."""
        return cls(
            cuda=AllocatorConfig.from_environment(environment, torch_version=torch_version),
            heap=HeapConfig.from_environment(environment),
        )


DEFAULT_ALLOCATORS = ProcessAllocators()
