"""The recorded events and blocks of one run, at one micro-batch size."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

from memplan.estimators.absent_card.card_streams import GraphStream, current_stream, default_stream
from memplan.estimators.step_trace import PHASES
from memplan.estimators.temporaries.timed_copies import TimedCopy
from memplan.results import Component, Phase

if TYPE_CHECKING:
    from memplan.estimators.absent_card.card_streams import StandInStream
    from memplan.estimators.temporaries.convolutions import Convolution
    from memplan.estimators.temporaries.ruled_blocks import RuledBlock

INSIDE = "inside "  # prefix of the operator's name for temporaries of its kernel, which follow from a rule


@dataclass(slots=True, kw_only=True)
class Recording:
    """Events and blocks of one run at one micro-batch size, in order.

    Args:
        micro_batch_size: samples of each forward pass.
        event_blocks: block number of each event.
        event_allocates: whether each event allocates its block.
        event_phases: index into ``PHASES`` of each event.
        block_bytes: requested bytes of each block.
        components: component of each block.
        modules: index into ``module_names`` of each block.
        operators: index into ``operator_names`` of each block.
        streams: number in ``stream_numbers`` of the stream that each block is made on; 0 is the default stream.
        kernel_calls: the convolution or rule whose temporary each block is, or the copy for a timing; None for others.
        module_names: index of each module path.
        operator_names: index of each operator name.
        stream_numbers: number of each stream.
        step_starts: index of each optimizer step's first event.
        cache_returns: index of each event before which the step returns cached memory to the driver.
        graph_returns: index of each event before which that is done once, to record a CUDA graph.
        phase: the current phase of the step.
    """

    micro_batch_size: int
    event_blocks: list[int] = field(default_factory=list)
    event_allocates: list[bool] = field(default_factory=list)
    event_phases: list[int] = field(default_factory=list)
    block_bytes: list[int] = field(default_factory=list)
    components: list[Component] = field(default_factory=list)
    modules: list[int] = field(default_factory=list)
    operators: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    kernel_calls: list[Convolution | RuledBlock | TimedCopy | None] = field(default_factory=list)
    module_names: dict[str, int] = field(default_factory=dict)
    operator_names: dict[str, int] = field(default_factory=dict)
    stream_numbers: dict[Any, int] = field(default_factory=lambda: {default_stream(): 0})
    step_starts: list[int] = field(default_factory=list)
    cache_returns: list[int] = field(default_factory=list)
    graph_returns: list[int] = field(default_factory=list)
    phase: Phase = Phase.SETUP

    def allocate(
        self,
        size_bytes: int,
        component: Component,
        *,
        module: str,
        operator: str,
        kernel_call: Convolution | RuledBlock | TimedCopy | None = None,
        before_steps: bool = False,
    ) -> int:
        """Record a new block and return its number.

        Args:
            size_bytes: what is requested.
            component: what the block holds.
            module: path of the running module.
            operator: name of the operator that makes it.
            kernel_call: the convolution or rule whose temporary it is, or the copy for a timing.
            before_steps: whether it has been there since before the first step.
        """
        block = len(self.block_bytes)
        self.block_bytes.append(size_bytes)
        self.components.append(component)
        self.modules.append(self.module_names.setdefault(module, len(self.module_names)))
        self.operators.append(self.operator_names.setdefault(operator, len(self.operator_names)))
        self.streams.append(0 if before_steps else self.stream_number())
        self.kernel_calls.append(kernel_call)
        self._event(block, allocates=True)
        if before_steps and self.step_starts:
            self._move_last_event_before_steps()
        return block

    def _move_last_event_before_steps(self) -> None:
        start = self.step_starts[0]
        self.event_blocks.insert(start, self.event_blocks.pop())
        self.event_allocates.insert(start, self.event_allocates.pop())
        del self.event_phases[-1]
        self.event_phases.insert(start, PHASES.index(Phase.SETUP))
        self.step_starts = [each + 1 for each in self.step_starts]
        self._shift_returns(after=start - 1, by=1)

    def allocate_again(self, block: int, size_bytes: int) -> int:
        """Record a new block for what an older one held, and return its number."""
        again = self.duplicate_block(block)
        self.block_bytes[again], self.streams[again] = size_bytes, self.stream_number()
        self._event(again, allocates=True)
        return again

    def stream_number(self) -> int:
        """Return the number of the stream that blocks are made on now; 0 is the default stream."""
        return self.number_of(current_stream())

    def number_of(self, stream: StandInStream) -> int:
        """Return the number of a stream."""
        return self.stream_numbers.setdefault(stream, len(self.stream_numbers))

    def duplicate_block(self, block: int) -> int:
        """Add a copy of a block, without an event, and return its number; a copy for a timing is then like others."""
        for of_blocks in self._of_blocks:
            of_blocks.append(of_blocks[block])
        if isinstance(self.kernel_calls[-1], TimedCopy):
            self.kernel_calls[-1] = None
        return len(self.block_bytes) - 1

    def is_by_rule(self) -> list[bool]:
        """Whether each block is a temporary that follows from a rule."""
        rules = {number for name, number in self.operator_names.items() if name.startswith(INSIDE)}
        return [operator in rules for operator in self.operators]

    def free(self, block: int) -> None:
        """Record that a block is freed."""
        self._event(block, allocates=False)

    def return_cache(self) -> None:
        """Record that the step returns cached memory to the driver."""
        self.cache_returns.append(len(self.event_blocks))

    def return_cache_for_graph(self) -> None:
        """Record that cached memory is returned to the driver once, because a CUDA graph is recorded next."""
        self.graph_returns.append(len(self.event_blocks))

    def attribute(self, block: int, component: Component, *, module: str) -> None:
        """Set what a block holds, and for which module."""
        self.components[block] = component
        self.modules[block] = self.module_names.setdefault(module, len(self.module_names))

    def replace_block(self, block: int, reused: int) -> None:
        """Remove a block, and the free of ``reused`` after it: ``reused`` stays allocated in its place.

        Later blocks, which are temporaries of the same kernel, are renumbered.
        """
        for event in range(len(self.event_blocks) - 1, -1, -1):
            number, allocates = self.event_blocks[event], self.event_allocates[event]
            if (number == reused and not allocates) or number == block:
                del self.event_blocks[event], self.event_allocates[event], self.event_phases[event]
                self._shift_returns(after=event, by=-1)
            elif number > block:
                self.event_blocks[event] -= 1
            if number == block and allocates:
                break
        if self.components[block] is not Component.TEMPORARIES:  # its component has been set since
            self.components[reused], self.modules[reused] = self.components[block], self.modules[block]
        for of_blocks in self._of_blocks:
            del of_blocks[block]

    @property
    def graph_streams(self) -> frozenset[int]:
        """Numbers of the streams on which CUDA graphs are recorded."""
        return frozenset(number for stream, number in self.stream_numbers.items() if isinstance(stream, GraphStream))

    @property
    def all_returns(self) -> list[int]:
        """Index of each event before which cached memory is returned to the driver, for whatever reason, ascending."""
        return sorted({*self.cache_returns, *self.graph_returns})

    @property
    def peak_bytes(self) -> int:
        """Largest sum of the bytes of live blocks, with all copies for timings."""
        changes = (
            self.block_bytes[block] if allocates else -self.block_bytes[block]
            for block, allocates in zip(self.event_blocks, self.event_allocates, strict=True)
        )
        return max(accumulate(changes), default=0)

    def order_frees(self) -> None:
        """Sort consecutive frees by block number.

        Torch frees autocast's casts of the weights in the order of a hash table of addresses, which differs between
        runs. The order makes no difference to either allocator, because adjacent free blocks are merged.
        """
        returns = self.all_returns
        returned = (bisect(returns, event) for event in range(len(self.event_blocks)))
        kinds = zip(self.event_allocates, self.event_phases, returned, strict=True)
        begin = 0
        for (allocates, *_), alike in groupby(kinds):
            end = begin + sum(1 for _ in alike)
            if not allocates:
                self.event_blocks[begin:end] = sorted(self.event_blocks[begin:end])
            begin = end

    def _shift_returns(self, *, after: int, by: int) -> None:
        """Move returns of cached memory whose event comes after another one."""
        self.cache_returns = [each + by * (each > after) for each in self.cache_returns]
        self.graph_returns = [each + by * (each > after) for each in self.graph_returns]

    @property
    def _of_blocks(self) -> tuple[list[Any], ...]:
        return self.block_bytes, self.components, self.modules, self.operators, self.streams, self.kernel_calls

    def _event(self, block: int, *, allocates: bool) -> None:
        self.event_blocks.append(block)
        self.event_allocates.append(allocates)
        self.event_phases.append(PHASES.index(self.phase))
