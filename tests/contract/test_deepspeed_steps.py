"""Steps that DeepSpeed's engine runs: what of a model each replica holds, on a card and, for real, on the CPU.

Eight layers of 512 x 512, whose 2 Mi weights are 4 MiB in half and 8 MiB in single precision.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import torch
from torch import nn

pytest.importorskip("deepspeed", reason="needs memplan[deepspeed]")

from deepspeed.runtime.zero import partition_parameters

from memplan.devices.cards import find_card
from memplan.devices.resolving import resolve_device
from memplan.errors import WorkloadError
from memplan.estimators import estimate
from memplan.probe.launcher import run_trial, trial_template
from memplan.probe.trials import TrialRequest
from memplan.recipe import Recipe
from memplan.units import KIB, MIB
from memplan.workload import Workload
from tests.contract import tracing
from tests.contract.tracing import DEEPSPEED, TEMPLATE_OF_DEEPSPEED
from tests.making import source_of

if TYPE_CHECKING:
    from memplan.children import Template
    from memplan.devices.cards import DeviceSpec
    from memplan.estimators import StepTrace
    from memplan.results import BreakdownBytes, Measurement

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CPU = resolve_device("cpu")
CARD = find_card("h100")
LAYERS = 8
SMALL_BUCKETS = {"reduce_bucket_size": MIB // 2, "allgather_bucket_size": MIB // 2}
KEEPS_NONE = {"stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
HOST = {"device": "cpu"}
REPLACES_LINEAR_OF_WHAT_IS_THERE = hasattr(  # from DeepSpeed 0.19.4 on
    partition_parameters.InsertPostInitMethodToModuleSubClasses, "_enable_mem_efficient_linear"
)


def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(LAYERS)))


def mean_square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).float().square().mean()


def workload(stage: int, **zero: Any) -> Workload:
    return Workload(
        model=layers,
        batch=lambda count: torch.randn(count, 512),
        loss=mean_square,
        optimizer=torch.optim.AdamW,
        grad_clip_norm=1.0,
        deepspeed={"zero_optimization": {"stage": stage, **SMALL_BUCKETS, **zero}},
    )


def recipe(**changes: Any) -> Recipe:
    return Recipe(**{"micro_batch_size": 4, "precision": "bf16", "world_size": 4, **changes})


def traced(given: Workload, device: DeviceSpec, asked: Recipe) -> StepTrace:
    return tracing.traced(given, device, asked, TEMPLATE_OF_DEEPSPEED)


def on_card(stage: int, *, replicas: int = 4, **zero: Any) -> BreakdownBytes:
    asked = recipe(world_size=replicas)
    return estimate(traced(workload(stage, **zero), CARD, asked), micro_batch_size=4, device=CARD).breakdown


def test_stages_shard_states_and_weights() -> None:
    replicated, states, weights = on_card(0), on_card(1), on_card(3, replicas=8, **KEEPS_NONE)
    assert replicated.optimizer_state == 3 * 8 * MIB  # masters and two moments
    assert states.optimizer_state == 3 * 8 * MIB // 4
    assert weights.optimizer_state == 3 * 8 * MIB // 8
    assert replicated.parameters == states.parameters == 4 * MIB
    assert MIB // 2 <= weights.parameters < 4 * MIB  # a part of each, and what is gathered


def test_a_model_that_is_sharded_only_once_it_is_there_takes_all_of_it_first() -> None:
    large = replace(
        workload(3, **KEEPS_NONE),
        model=lambda: nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(LAYERS))),  # 32 MiB each
        batch=lambda count: torch.randn(count, 4096),
    )
    asked = recipe(world_size=64)
    as_made, once_there = (
        estimate(traced(replace(large, zero_init=each), CARD, asked), micro_batch_size=4, device=CARD)
        for each in (True, False)
    )
    assert as_made.peak_allocated_bytes < LAYERS * 32 * MIB <= once_there.peak_allocated_bytes
    if REPLACES_LINEAR_OF_WHAT_IS_THERE:  # else the peak is of gathered copies, in the backward pass
        assert once_there.breakdown.parameters >= LAYERS * 32 * MIB


def test_what_is_offloaded_takes_nothing_on_a_card() -> None:
    of_states = on_card(3, offload_optimizer=HOST, **KEEPS_NONE)
    of_all = on_card(3, offload_optimizer=HOST, offload_param=HOST, **KEEPS_NONE)
    assert of_states.optimizer_state == of_all.optimizer_state == 0
    assert of_all.parameters <= of_states.parameters - MIB


def engine_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    if type(model).__name__ != "DeepSpeedEngine":
        raise AssertionError(type(model))
    return mean_square(model, batch)


def test_the_engine_is_what_is_evaluated_too_and_nothing_is_said_of_what_it_asks_or_reads() -> None:
    given = replace(workload(2), loss=engine_loss, evaluate=engine_loss)
    assert traced(given, CARD, recipe()).notes == ()


def test_a_precision_without_masters_is_refused() -> None:
    with pytest.raises(WorkloadError, match="DeepSpeed has no precision bf16-true"):
        traced(workload(1), CARD, recipe(precision="bf16-true"))


@pytest.fixture(scope="module")
def template():
    with trial_template(DEEPSPEED) as made:
        yield made


def really(given: Workload, asked: Recipe, template: Template) -> Measurement:
    """Run a trial of the step on the CPU."""
    request = TrialRequest(
        source=source_of(given),
        recipe=asked,
        device=CPU,
        budget_bytes=CPU.total_bytes,
        warmup_steps=2,
        timed_steps=1,
        timed_s=0,
    )
    ended = run_trial(request, template=template)
    assert ended.measurement is not None, ended.evidence
    return ended.measurement


@pytest.mark.parametrize(("stage", "precision", "passes"), [(2, "fp32", 2), (3, "bf16", 1)])
def test_a_step_on_the_cpu_takes_what_it_does_for_real(
    stage: int, precision: str, passes: int, template: Template
) -> None:
    asked = recipe(micro_batch_size=64, precision=precision, accumulation_steps=passes)
    evaluate = engine_loss if stage < 3 else None  # after which weights are gathered in another order
    given = replace(workload(stage), loss=engine_loss, evaluate=evaluate)
    real = really(given, asked, template)
    found = estimate(traced(given, CPU, asked), micro_batch_size=64, device=CPU)
    assert not real.notes  # of an evaluation that failed, or memory that grew
    assert found.peak_allocated_bytes == pytest.approx(real.peak_allocated_bytes, abs=64 * KIB)
    assert real.breakdown is not None
    assert found.breakdown.parameters == real.breakdown.parameters
    assert found.breakdown.optimizer_state == real.breakdown.optimizer_state
