"""Steps traced in forks of one template, which spares every trace the import of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan.estimators import StepTrace, trace_step, trace_template
from memplan.recipe import Recipe
from tests.making import source_of

if TYPE_CHECKING:
    from memplan.children import Template
    from memplan.devices.cards import DeviceSpec
    from memplan.workload import Workload

TEMPLATE = trace_template()  # ended with the session, see conftest.py, as are the others
TEMPLATE_OF_COMPILED = trace_template(["memplan.estimators.recorder.compiled_graphs"])  # has loaded Inductor as well
# The second is imported when an engine is made; it has functions compiled, for which PyTorch loads Inductor.
DEEPSPEED = ("deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer")
TEMPLATE_OF_DEEPSPEED = trace_template(DEEPSPEED)
FOUR_SAMPLES = Recipe(micro_batch_size=4)


def traced(
    workload: Workload,
    device: DeviceSpec,
    recipe: Recipe = FOUR_SAMPLES,
    template: Template = TEMPLATE,
    **options: Any,
) -> StepTrace:
    """Trace a workload's step, of four samples where nothing else is asked."""
    return trace_step(source_of(workload), recipe, device, template=template, **options)
