"""Where a peak goes: its components, its largest holders and the part of the step that it falls in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum


class Phase(StrEnum):
    """Part of a training in which a peak falls."""

    SETUP = "setup"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer step"
    EVALUATION = "evaluation"


class Component(IntEnum):
    """A component of :class:`BreakdownBytes` that blocks of memory belong to; a number, so that arrays can hold it."""

    PARAMETERS = 0
    BUFFERS = 1
    GRADIENTS = 2
    OPTIMIZER_STATE = 3
    ACTIVATIONS = 4
    TEMPORARIES = 5
    INPUTS = 6
    WORKSPACES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakdownBytes(Mapping[str, int]):
    """Where the process peak goes at one instant, in bytes; also readable as a mapping from component name to bytes.

    Args:
        parameters: weights, tied ones once.
        buffers: registered buffers, such as running statistics.
        gradients: ``.grad`` of the parameters.
        optimizer_state: what the optimizer keeps between steps.
        activations: made in the forward pass and kept for the backward pass.
        temporaries: everything else that is alive at the instant of the peak.
        inputs: the batch.
        workspaces: library workspaces that the caching allocator hands out.
        allocator_slack: held by the allocator beyond its live blocks: rounding, segments, fragmentation.
        context: CUDA context and library modules; on the CPU the resident interpreter and libraries.
    """

    parameters: int = 0
    buffers: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    activations: int = 0
    temporaries: int = 0
    inputs: int = 0
    workspaces: int = 0
    allocator_slack: int = 0
    context: int = 0

    @classmethod
    def of_blocks(cls, held: Mapping[Component, int], *, allocator_slack: int, context: int = 0) -> BreakdownBytes:
        """Return the breakdown of what blocks of each component hold, with what belongs to no block."""
        named = {component.name.lower(): size for component, size in held.items()}
        return cls(**named, allocator_slack=allocator_slack, context=context)

    @property
    def total_bytes(self) -> int:
        """Process peak: the sum of all components."""
        return sum(self.values())

    def __getitem__(self, component: str) -> int:
        if component not in COMPONENTS:
            raise KeyError(component)
        value: int = getattr(self, component)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(COMPONENTS)

    def __len__(self) -> int:
        return len(COMPONENTS)


COMPONENTS: tuple[str, ...] = tuple(each.name for each in fields(BreakdownBytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakShare:
    """Bytes that modules or operators of one name hold at the instant of the allocated peak.

    Args:
        name: operator, or path of a module; ``*`` stands for the number of one that repeats, as in ``layers.*.mlp``.
        held_bytes: what all of that name hold together.
        holder_count: how many there are of that name.
    """

    name: str
    held_bytes: int
    holder_count: int = 1
