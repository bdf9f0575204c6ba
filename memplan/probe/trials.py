"""The messages between parent and child of one live trial; plain values, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memplan.devices.cards import DeviceSpec
from memplan.recipe import Precision, Recipe
from memplan.results import Measurement, OutcomeKind
from memplan.training.environment import QUIET_PROFILER, WITHOUT_CARD
from memplan.units import MIB
from memplan.workload import TrainingCommand, WorkloadSource

WORKER_MODULE = "memplan.probe.worker"
DEFAULT_TRIAL_LIMIT_S = 900.0
DEFAULT_BUILD_LIMIT_S = 1800.0
DEFAULT_LOADER_LIMIT_S = 30.0
UNTIMED_LOADER_NOTE = "the data loader was not timed: {reason}"
# The scale starts at 2**16 and halves with every skipped step (torch.amp.GradScaler): 20 bring it to 1/16.
MOST_SKIPPED_STEPS = 20
# What the profiler may take on top of the budget in the attributing step on the CPU, after the peaks have been read.
PROFILER_ALLOWANCE_BYTES = 512 * MIB


def trial_environment(device: DeviceSpec) -> dict[str, str]:
    """Return what is set in the environment of every process of a run's trials; one template serves them all."""
    if device.live_index is None:
        return WITHOUT_CARD
    return {**QUIET_PROFILER, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # NVML's order, by which the device was chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimit:
    """How long a warm-up or timed optimizer step may take before its trial is stopped.

    Args:
        limit_s: wall time of the step; None where only two slow ones end a trial, since one may hold an evaluation.
        usual_s: step time that the limit was derived from, quoted as evidence; None where it was set as it is.
        usual_precision: number format of that step; None where it is not known.
        slow_s: wall time beyond which no two steps one after another may go; None where each may go to the limit.
    """

    limit_s: float | None
    usual_s: float | None = None
    usual_precision: Precision | None = None
    slow_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """One recipe to run, and the limits it is held to.

    Args:
        source: how the child gets hold of the workload.
        recipe: what to run.
        device: where to run it; a card needs its ``live_index``.
        budget_bytes: largest device peak (CUDA) or resident set (CPU) that counts as fitting.
        seed: of the initial weights and of the batch; the same seed gives the same ones at every precision.
        warmup_steps: optimizer steps before timing starts, at least 1 so that optimizer state is resident.
        timed_steps: optimizer steps that are timed at least, 1 or more.
        timed_s: short steps are timed further until they sum to this wall time, or are twenty.
        build_limit_s: wall time until the first step starts, imports and the building of the model included.
        time_limit_s: wall time of all steps after which the trial is stopped; what follows the readings has as much
            again.
        step_limit: how long one step may take; None for no limit of its own.
        configured_learning_rate: rate in the user's config, to which the recipe's stands in proportion; None leaves the
            optimizer's rates as the workload made them.
        loader_limit_s: wall time that timing the workload's data loader, if it names one, may take once all else has
            been measured, the start of its workers included; None where it is not to be timed.
        runs_compiled: whether what the workload compiles by ``torch.compile`` runs so; else as it is written.
    """

    source: WorkloadSource
    recipe: Recipe
    device: DeviceSpec
    budget_bytes: int
    seed: int = 0
    warmup_steps: int = 2
    timed_steps: int = 3
    timed_s: float = 1.0
    build_limit_s: float = DEFAULT_BUILD_LIMIT_S
    time_limit_s: float = DEFAULT_TRIAL_LIMIT_S
    step_limit: StepLimit | None = None
    configured_learning_rate: float | None = None
    loader_limit_s: float | None = None
    runs_compiled: bool = True

    @property
    def card_indices(self) -> tuple[int, ...]:
        """Numbers by which CUDA knows the cards that the trial uses; none on the CPU.

        A command's replicas take one card each, from the device on; a workload is run once, whatever the replicas.
        """
        first = self.device.live_index
        if first is None:
            return ()
        replicas = self.recipe.world_size if isinstance(self.source, TrainingCommand) else 1
        return tuple(range(first, first + replicas))


class TrialPhase(StrEnum):
    """What the child is doing."""

    STARTING = "starting"
    IMPORTING = "importing the workload"
    BUILDING = "building"
    COMPILING = "compiling"
    WARMING_UP = "warming up"
    EVALUATING = "evaluating"
    TIMING = "timing"
    ATTRIBUTING = "attributing"
    LOADING = "timing the data loader"


# What torch.compile does comes on top of a step. The attributing step, under a profiler, has no limit of its own: what
# counts has been measured by then.
LIMITED_PHASES = (TrialPhase.WARMING_UP, TrialPhase.TIMING)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialProgress:
    """The child enters a phase, or starts one optimizer step of it.

    Args:
        phase: what it is doing now.
        step: number of the optimizer step that starts now, from 1 over all phases; None outside of steps.
        step_count: optimizer steps of the whole trial, the attributing one included.
    """

    phase: TrialPhase
    step: int | None = None
    step_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialNotes:
    """Notes on the workload, such as those of its batches, sent before anything can fail because of what they say."""

    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReadings:
    """What the child read once all timed steps were completed; sent before the attributing step and after it.

    Args:
        measurement: the readings.
        unattributed_because: why its breakdown holds only what is known without the attributing step: context and
            temporaries; None where the breakdown is whole.
    """

    measurement: Measurement
    unattributed_because: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialVerdict:
    """How a trial ended; the child's only message where it could not complete its steps.

    Args:
        kind: the class of ending.
        evidence: one line that says what was seen.
        available_samples: how many the data has, where a full batch takes more; None where it was not short of them.
    """

    kind: OutcomeKind
    evidence: str
    available_samples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRefused:
    """The child is a fork of a process that had touched the device, and cannot use it."""
