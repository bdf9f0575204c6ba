"""Make optimizers and read their learning rates. Imports torch; child processes only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.configs.workloads import load_workload
from memplan.probe.optimizer_rates import OptimizerRates, RatesFailure
from memplan.training.skipped_initialisation import initialisation_skipped, patch_initialisers

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.probe.optimizer_rates import RatesRequest
    from memplan.workload import WorkloadReference


def run_rates(request: RatesRequest, reply: Callable[[object], None]) -> None:
    """Reply with the :class:`OptimizerRates` or why there are none; no weights are written, only rates are wanted."""
    patch_initialisers()
    try:
        reply(OptimizerRates(of_each=tuple(_rates_of(each) for each in request.sources)))
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises is the reason
        reply(RatesFailure(reason=f"{type(error).__name__}: {error}".splitlines()[0]))


def _rates_of(source: WorkloadReference) -> tuple[float, ...]:
    workload = load_workload(source)
    with initialisation_skipped():
        model = workload.model()
    groups = workload.optimizer(model.parameters()).param_groups
    return tuple(float(group["lr"]) for group in groups if group.get("lr") is not None)
