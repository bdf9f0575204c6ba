"""Estimates of one subject on one device: each kind of step is traced once and answers for every micro-batch."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.devices.cards import ContextSize
from memplan.devices.measured_contexts import remember_context
from memplan.errors import TraceError, WorkloadError
from memplan.estimators import TracedSetting, estimate, process_peak, step_snapshot, trace_steps
from memplan.estimators.allocators.process_allocators import ProcessAllocators
from memplan.progress import Notice, Observer, Stage
from memplan.results import ContextBasis
from memplan.workload import TrainingCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memplan.children import Template
    from memplan.devices.cards import DeviceSpec
    from memplan.estimators import StepTrace
    from memplan.recipe import Recipe
    from memplan.results import Estimate, Measurement
    from memplan.workload import WorkloadSource


class Traces:
    """The traces of one workload on one device, made when they are first asked for."""

    def __init__(
        self,
        source: WorkloadSource,
        device: DeviceSpec,
        observer: Observer,
        *,
        trace_limit_s: float | None = None,
        template: Template | None = None,
        exact_sizes: tuple[int, ...] = (),
    ) -> None:
        self._source = source
        self._device = device
        self._observer = observer
        self._trace_limit_s = trace_limit_s
        self._template = template
        self._exact_sizes = exact_sizes
        # By kind of step; where a trace is valid for one micro-batch only, its kind has that micro-batch.
        self._traces: dict[TracedSetting, StepTrace] = {}
        self._failures: dict[TracedSetting, TraceError | WorkloadError] = {}
        self._said: set[str] = set()
        self._allocators = ProcessAllocators.from_environment(
            os.environ if device.is_here else {}, torch_version=importlib.metadata.version("torch")
        )
        self._correction = 1.0
        self._measured_optimizer_name: str | None = None

    @property
    def can_trace(self) -> bool:
        """Whether there is a workload to trace; a training command is only run."""
        return not isinstance(self._source, TrainingCommand)

    def of(self, recipe: Recipe, *, fused_optimizer: bool = False) -> StepTrace:
        """Trace a recipe's step; recipes that differ only in sizes share one trace.

        Raises:
            WorkloadError: the workload cannot be loaded, raises or breaks its contract.
            TraceError: the model cannot be traced.
        """
        if not self.can_trace:
            raise TraceError("a training command is run, not traced")
        return self._traced(_kind_of(TracedSetting(recipe=recipe, fused_optimizer=fused_optimizer)), recipe)

    def make_ahead(self, settings: Iterable[TracedSetting]) -> None:
        """Trace at the same time what will be asked for; what cannot be traced so is left to be asked for.

        Afterwards the same for sizes that the traces of their kinds of step do not predict.
        """
        wanted = tuple(settings)
        self._trace_together((_kind_of(each), each.recipe) for each in wanted)
        known = [(each, self._traces.get(_kind_of(each))) for each in wanted]
        self._trace_together(
            (_sized_kind_of(each), each.recipe)
            for each, trace in known
            if trace is not None and not trace.covers(each.recipe.micro_batch_size)
        )

    def _trace_together(self, kinds: Iterable[tuple[TracedSetting, Recipe]]) -> None:
        """Trace those that are missing."""
        missing: dict[TracedSetting, Recipe] = {}
        for kind, recipe in kinds:
            if self.can_trace and kind not in self._traces and kind not in self._failures:
                missing.setdefault(kind, recipe)
        if missing:
            with contextlib.suppress(TraceError, WorkloadError):  # it is raised where it is asked for
                self._trace(missing)

    def _of_size(self, recipe: Recipe) -> StepTrace:
        """Trace a recipe's step, if possible at its own micro-batch where a trace at another does not predict it."""
        trace = self.of(recipe)
        if trace.covers(recipe.micro_batch_size):
            return trace
        try:
            return self._traced(_sized_kind_of(TracedSetting(recipe=recipe)), recipe)
        except (TraceError, WorkloadError):
            return trace

    def _of_known_sizes(self, recipe: Recipe) -> StepTrace:
        """Return the trace of a recipe's kind of step with the timelines of all sizes that were traced for it."""
        trace = self.of(recipe)
        if trace.envelope is not None:
            return self._of_size(recipe)
        if trace.holds_for_all:
            return trace
        kind = _kind_of(TracedSetting(recipe=recipe))
        timelines = {
            size: timeline
            for each, known in self._traces.items()
            if _kind_of(each) == kind and not known.holds_for_all
            for size, timeline in known.timelines_by_size.items()
        }
        return replace(trace, traced_batch_sizes=tuple(timelines), timelines=tuple(timelines.values()))

    def _traced(self, kind: TracedSetting, recipe: Recipe) -> StepTrace:
        if kind in self._failures:
            raise self._failures[kind]
        if kind not in self._traces:
            self._trace({kind: recipe})
        return self._traces[kind]

    def _trace(self, recipes: dict[TracedSetting, Recipe]) -> None:
        """Trace the first kind, and of the others what can be traced beside it."""
        settings = {
            kind: replace(kind, recipe=replace(recipe, accumulation_steps=kind.recipe.accumulation_steps))
            for kind, recipe in recipes.items()
        }
        first, recipe = next(iter(recipes.items()))
        fused = ", fused optimizer" if first.fused_optimizer else ""
        others = f" and {len(recipes) - 1} more" if len(recipes) > 1 else ""
        self._observer(Stage(text=f"estimating {recipe}{fused}{others}"))
        try:
            traces = trace_steps(
                self._source,
                tuple(settings.values()),
                self._device,
                limit_s=self._trace_limit_s,
                template=self._template,
                exact_sizes=self._exact_sizes,
            )
        except (TraceError, WorkloadError) as error:
            self._failures[first] = error
            raise
        self._traces.update((kind, traces[setting]) for kind, setting in settings.items() if setting in traces)

    def estimate(self, recipe: Recipe) -> Estimate:
        """Predict the peaks of a recipe."""
        return self._estimate(self._of_size(recipe), recipe)

    def _estimate(self, trace: StepTrace, recipe: Recipe) -> Estimate:
        found = estimate(
            trace, micro_batch_size=recipe.micro_batch_size, device=self._device, allocators=self._allocators
        )
        return replace(found, recipe=recipe)

    def snapshot(self, recipe: Recipe) -> bytes:
        """Return the predicted timeline of a recipe as the content of a PyTorch memory snapshot."""
        return step_snapshot(self.of(recipe), micro_batch_size=recipe.micro_batch_size, allocators=self._allocators)

    def of_if_traceable(self, recipe: Recipe) -> StepTrace | None:
        """Trace a recipe's step; None, with one notice, where it cannot be traced: a live trial may still run it."""
        try:
            return self.of(recipe)
        except (TraceError, WorkloadError) as error:
            if str(error) not in self._said and self.can_trace:
                self._said.add(str(error))
                self._observer(Notice(text=f"no estimate for {recipe.precision}: {error}"))
            return None

    def estimate_if_traceable(self, recipe: Recipe) -> Estimate | None:
        """Predict the peaks of a recipe; None where its step cannot be traced."""
        return None if self.of_if_traceable(recipe) is None else self.estimate(recipe)

    def optimizer_name(self, recipe: Recipe) -> str:
        """Class name of the optimizer as traced or seen in a trial; "the optimizer" where neither is known."""
        trace = self.of_if_traceable(recipe)
        return (self._measured_optimizer_name or "the optimizer") if trace is None else trace.optimizer_name

    def training_samples(self, recipe: Recipe) -> int | None:
        """Return how many samples the training set has; None where the workload does not tell."""
        trace = self.of_if_traceable(recipe)
        return None if trace is None else trace.training_samples

    def uses_batch_norm(self, recipe: Recipe) -> bool:
        """Whether the model is known to use statistics over the micro-batch."""
        trace = self.of_if_traceable(recipe)
        return trace is not None and trace.uses_batch_norm

    def process_peak(self, recipe: Recipe, *, fused_optimizer: bool = False) -> Callable[[int], int]:
        """Return a function from a micro-batch size of a recipe to its predicted process peak in bytes.

        Args:
            recipe: its micro-batch size is the one that is traced, if none is yet.
            fused_optimizer: whether the optimizer's fused implementation takes the place of the one it would choose.
        """
        return process_peak(self.of(recipe, fused_optimizer=fused_optimizer), self._device, self._allocators)

    def expected_process_bytes(self, recipe: Recipe) -> int:
        """Predict the process peak, corrected by what the trials so far showed of this device.

        Where the number of allocations follows the micro-batch, one that was not traced lies on the line between two
        that were: a search asks about many and runs few.
        """
        trace = self._of_known_sizes(recipe)
        found = self._estimate(trace, recipe)
        context_bytes = found.breakdown.context
        return context_bytes + round(self._correction * (found.peak_process_bytes - context_bytes))

    def learn(self, recipe: Recipe, measured: Measurement) -> None:
        """Adopt the context and the optimizer that a trial saw, and by how much the rest exceeded its estimate.

        A context that may hold other programs' memory is used in this run, and not kept for later ones. A trial that
        needed less is not taken as a reason to expect less of larger batches: at a small one the fixed parts of the
        estimate weigh most.
        """
        context_bytes = measured.breakdown.context
        self._measured_optimizer_name = measured.optimizer_name
        if measured.has_own_context:
            remember_context(self._device, context_bytes)
        context = ContextSize(size_bytes=context_bytes, basis=ContextBasis.FIRST_TRIAL)
        self._device = replace(self._device, context=context)
        found = self.estimate_if_traceable(recipe)
        if found is None:
            return
        predicted_bytes = found.peak_process_bytes - found.breakdown.context
        if predicted_bytes > 0:
            excess = (measured.peak_process_bytes - measured.breakdown.context) / predicted_bytes
            self._correction = max(excess, 1.0)


def _kind_of(setting: TracedSetting) -> TracedSetting:
    """Return what one trace of a setting is valid for: a setting whose recipe has no sizes."""
    steps = min(setting.recipe.accumulation_steps, 2)  # any number above 1 keeps the gradients
    sizeless = replace(setting.recipe, micro_batch_size=1, accumulation_steps=steps, learning_rate=None)
    return replace(setting, recipe=sizeless)


def _sized_kind_of(setting: TracedSetting) -> TracedSetting:
    """Return what a trace of a setting is valid for that predicts no other micro-batch than its own."""
    kind = _kind_of(setting)
    return replace(kind, recipe=kind.recipe.with_micro_batch_size(setting.recipe.micro_batch_size))
