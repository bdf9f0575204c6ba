"""What a trace of a training step is: a timeline of blocks whose sizes are polynomials of the micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from memplan.estimators.temporaries.convolutions import SizedWorkspaces, Workspaces
from memplan.estimators.temporaries.ruled_blocks import RuledBlocks, no_numbers
from memplan.estimators.temporaries.timed_copies import TimedCopies
from memplan.estimators.temporaries.varying_workspaces import VaryingWorkspaces
from memplan.results import Component, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from memplan.devices.cards import DeviceKind
    from memplan.estimators.sample_loops import SampleLoops
    from memplan.recipe import Recipe

Known = TypeVar("Known", Workspaces, SizedWorkspaces, RuledBlocks)

PHASES = tuple(Phase)
DRAWN_STEPS, _DRAWS = 30, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Allocations and frees of two or more training steps in order, and what is known of each block.

    A block's requested bytes at micro-batch ``b`` are ``sum(size_terms[:, block] * b**[0, 1, 2])``, but for those that
    the last arguments name.

    Args:
        event_blocks: block number of each event.
        event_allocates: whether each event allocates its block; it frees it otherwise.
        event_phases: index into ``PHASES`` of each event.
        step_starts: first event of each optimizer step.
        size_terms: constant, linear and quadratic coefficient of each block's bytes, shape (3, blocks).
        components: ``Component`` of each block.
        modules: index into ``module_names`` of each block.
        operators: index into ``operator_names`` of each block.
        module_names: module paths; the empty path is the model itself.
        operator_names: operators that made the blocks.
        side_streams: the stream of each block that is not made on the default stream, by block.
        graph_streams: those of them on which CUDA graphs are recorded.
        workspaces: the blocks that are workspaces of convolutions.
        sized_workspaces: what they take at some micro-batches, as cuDNN or a rule says; None before either was asked.
        searches: what cuDNN's search for algorithms takes in place of the first workspace of each call, at some
            micro-batches; None where it does not search, or was not asked.
        cache_returns: events before which PyTorch returns its cached memory to the driver, ascending.
        ruled: the blocks of kernels whose bytes follow from rules with thresholds, and so no line.
        timed_copies: the blocks that are only made where they fit below the peak so far.
        loops: events that every sample repeats; None where all micro-batches have the same events.
    """

    event_blocks: npt.NDArray[np.int32]
    event_allocates: npt.NDArray[np.bool_]
    event_phases: npt.NDArray[np.int8]
    step_starts: npt.NDArray[np.int32]
    size_terms: npt.NDArray[np.float64]
    components: npt.NDArray[np.int8]
    modules: npt.NDArray[np.int32]
    operators: npt.NDArray[np.int32]
    module_names: tuple[str, ...]
    operator_names: tuple[str, ...]
    side_streams: Mapping[int, int] = field(default_factory=dict)
    graph_streams: frozenset[int] = frozenset()
    workspaces: Workspaces = field(default_factory=Workspaces)
    sized_workspaces: SizedWorkspaces | None = None
    searches: SizedWorkspaces | None = None
    cache_returns: npt.NDArray[np.int32] = field(default_factory=no_numbers)
    ruled: RuledBlocks = field(default_factory=RuledBlocks)
    timed_copies: TimedCopies = field(default_factory=TimedCopies)
    loops: SampleLoops | None = None

    @property
    def allocations(self) -> npt.NDArray[np.int32]:
        """The event that allocates each block."""
        events = np.flatnonzero(self.event_allocates)
        found = np.zeros(self.components.size, dtype=np.int32)
        found[self.event_blocks[events]] = events
        return found

    @property
    def steps(self) -> npt.NDArray[np.intp]:
        """Index of the step that allocates each block; -1 for blocks from before the first."""
        return np.searchsorted(self.step_starts, self.allocations, side="right") - 1

    def unrolled(self, micro_batch_size: int) -> Timeline:
        """Return the timeline with as many rounds of its loops as a micro-batch has, for that size alone.

        Blocks keep their numbers; those of further rounds come after all others.
        """
        if self.loops is None:
            return self
        block_count = self.components.size
        events, numbers, sources = self.loops.unrolled_blocks(micro_batch_size, self.event_blocks, block_count)
        positions = self.loops.positions(micro_batch_size).astype(np.int32)
        streams = np.zeros(block_count, dtype=np.int64)
        streams[list(self.side_streams)] = list(self.side_streams.values())
        return replace(
            self,
            event_blocks=numbers.astype(np.int32),
            event_allocates=self.event_allocates[events],
            event_phases=self.event_phases[events],
            step_starts=positions[self.step_starts],
            size_terms=self.size_terms[:, sources],
            components=self.components[sources],
            modules=self.modules[sources],
            operators=self.operators[sources],
            side_streams={block: stream for block, stream in enumerate(streams[sources].tolist()) if stream},
            cache_returns=positions[self.cache_returns],
            workspaces=_with_copies(self.workspaces, sources),
            sized_workspaces=self.sized_workspaces and _with_copies(self.sized_workspaces, sources),
            ruled=_with_copies(self.ruled, sources),
            loops=None,
        )

    def block_bytes(self, micro_batch_size: int) -> npt.NDArray[np.int64]:
        """Return each block's requested bytes at this micro-batch size."""
        powers = float(micro_batch_size) ** np.arange(3)
        sizes = powers @ self.size_terms
        if self.sized_workspaces is not None:
            sizes[self.sized_workspaces.blocks] = self.sized_workspaces.block_bytes(micro_batch_size)
        sizes[self.ruled.blocks] = self.ruled.block_bytes(micro_batch_size)
        found = np.maximum(np.rint(sizes), 0).astype(np.int64)
        if self.timed_copies.blocks.size:
            found[self.timed_copies.not_made(found, self.event_blocks, self.event_allocates)] = 0
        return found


def _with_copies(known: Known, sources: npt.NDArray[np.intp]) -> Known:
    """Return what is known of some blocks with the same of their copies, given which block each block copies."""
    places = np.searchsorted(known.blocks, sources)
    are_known = np.isin(sources, known.blocks)
    blocks = np.flatnonzero(are_known).astype(np.int32)
    return replace(known, blocks=blocks, numbers=known.numbers[places[are_known]])


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBatches:
    """How the blocks of a step follow the size of its batch, where samples vary and are padded to the largest of them.

    Args:
        timeline: steps on the worst batch; the last one repeats the one before.
        handed_on: blocks of the step before that the last one frees and, in the second row, the block that it leaves in
            the place of each; shape (2, n).
        share_terms: constant, linear and quadratic coefficient of what a block takes, as a share of what it takes for
            the worst batch, by the batch's share of that; shape (3, blocks).
        sample_shares: sizes of samples as shares of the largest, ascending.
        workspaces: the blocks that are workspaces of convolutions, which follow no such terms.
    """

    timeline: Timeline
    handed_on: npt.NDArray[np.int32]
    share_terms: npt.NDArray[np.float64]
    sample_shares: npt.NDArray[np.float64]
    workspaces: VaryingWorkspaces = field(default_factory=VaryingWorkspaces)

    def batch_shares(self, micro_batch_size: int) -> npt.NDArray[np.float64]:
        """Return the size of each step's batch as a share of the worst's, that of its largest sample.

        Returns:
            Shape (draws, steps), the same for the same sizes of samples.
        """
        draws = [np.random.default_rng(seed) for seed in range(_DRAWS)]
        samples = [draw.choice(self.sample_shares, size=(DRAWN_STEPS, micro_batch_size)) for draw in draws]
        found: npt.NDArray[np.float64] = np.stack(samples).max(axis=2)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """What one workload and recipe allocate, for any micro-batch size.

    Args:
        workload_name: what is trained.
        recipe: the setting that was traced; its micro-batch size is the one the caller asked about.
        device_kind: kind of device the trace was lowered to.
        compute_capability: card the trace was lowered to; None on the CPU.
        timelines: one timeline that holds for every size; or, where the step loops over samples, that after those of
            the traced sizes that have fewer; or, where the number of allocations depends on the micro-batch otherwise,
            one for each traced size, without linear or quadratic terms.
        traced_batch_sizes: the micro-batch sizes that were run, in the order of ``timelines`` where there are several.
        uses_batch_norm: whether a batch statistic over the micro-batch is taken in training.
        optimizer_name: class name of the optimizer.
        method: how the trace was obtained.
        sm_count: multiprocessors of that card; None on the CPU, and where they are not known.
        is_in_benchmark_mode: whether PyTorch times cuDNN's algorithms first (``torch.backends.cudnn.benchmark``).
        host_context_bytes: resident set of a process that has imported torch and the workload; None for a card.
        envelope: the timeline with each block as large per sample as in the traced batch where it is largest; None
            where samples are alike, or the number of allocations depends on them.
        drawn: how its blocks follow the size of a batch; None where that is not known, or batches are alike.
        training_samples: how many the training set has; None where the workload does not tell.
        uncounted: what is known to be missing, one phrase each.
        notes: what a reader should know, one phrase each.
    """

    workload_name: str
    recipe: Recipe
    device_kind: DeviceKind
    compute_capability: tuple[int, int] | None
    timelines: tuple[Timeline, ...]
    traced_batch_sizes: tuple[int, ...]
    uses_batch_norm: bool
    optimizer_name: str
    method: str
    sm_count: int | None = None
    is_in_benchmark_mode: bool = False
    host_context_bytes: int | None = None
    envelope: Timeline | None = None
    drawn: DrawnBatches | None = None
    training_samples: int | None = None
    uncounted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def multiplies(self) -> bool:
        """Whether the step runs a matrix product on a card, which loads cuBLAS."""
        return any(np.any(each.components == Component.WORKSPACES) for each in self.timelines)

    @property
    def timelines_by_size(self) -> dict[int, Timeline]:
        """The timeline of each traced micro-batch size, where there is more than one timeline."""
        return dict(zip(self.traced_batch_sizes, self.timelines, strict=True))

    @property
    def holds_for_all(self) -> bool:
        """Whether there is a timeline for every micro-batch size."""
        return len(self.timelines) == 1 or self.timelines[-1].loops is not None

    def timeline_at(self, micro_batch_size: int) -> Timeline | None:
        """Return the timeline that holds for a micro-batch size; None where only those of other sizes are known.

        Where the step loops over samples, a size below the traced ones takes as much as the smallest of these.
        """
        if not self.holds_for_all:
            return self.timelines_by_size.get(micro_batch_size)
        *of_fewer, of_others = self.timelines
        fewer = (
            each for size, each in zip(self.traced_batch_sizes, of_fewer, strict=False) if micro_batch_size <= size
        )
        return next(fewer, None) or of_others.unrolled(micro_batch_size)

    def covers(self, micro_batch_size: int) -> bool:
        """Whether tracing at a micro-batch would add nothing: it was traced, or sizes depend on it and loops alone.

        Where the recipe's own micro-batch could not be traced, another could not either.
        """
        loops, traced = self.timelines[-1].loops, self.traced_batch_sizes
        if loops is not None:
            return micro_batch_size >= loops.least_samples or micro_batch_size in traced
        is_general = self.envelope is None and self.holds_for_all
        return is_general or micro_batch_size in traced or self.recipe.micro_batch_size not in traced
