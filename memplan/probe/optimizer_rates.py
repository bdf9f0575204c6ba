"""The learning rates that a workload's optimizer really has, read in a child process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.children import Template, run_child, stop_after
from memplan.probe.trials import WORKER_MODULE, trial_environment

if TYPE_CHECKING:
    from memplan.devices.cards import DeviceSpec
    from memplan.workload import WorkloadReference

_RATES_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesRequest:
    """Workloads whose optimizers are to be made, one after the other; no step is run."""

    sources: tuple[WorkloadReference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRates:
    """The learning rate of each parameter group, for each workload in order; groups without a rate are left out."""

    of_each: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesFailure:
    """Why an optimizer could not be made, in one line."""

    reason: str


def read_rates(
    sources: tuple[WorkloadReference, ...], device: DeviceSpec, *, template: Template | None
) -> OptimizerRates | RatesFailure:
    """Make the optimizers of some workloads in a child process and return their rates, or why that fails.

    Args:
        sources: where the workloads come from.
        device: on which the run's trials are.
        template: a template of trials, which forks the child; None starts it from nothing.
    """
    ending = run_child(
        WORKER_MODULE,
        RatesRequest(sources=sources),
        watch=stop_after(_RATES_TIMEOUT_S, "no optimizer"),
        environment=trial_environment(device),
        template=template,
    )
    without = ending.stop_reason or f"the process that makes the optimizer ended with exit status {ending.return_code}"
    found = (each for each in ending.messages if isinstance(each, OptimizerRates | RatesFailure))
    return next(found, RatesFailure(reason=without))
