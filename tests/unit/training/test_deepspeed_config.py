"""DeepSpeed's configuration for a recipe."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.errors import WorkloadError
from memplan.recipe import Recipe
from memplan.training.deepspeed_config import engine_config

BF16 = Recipe(micro_batch_size=4, accumulation_steps=2, precision="bf16", world_size=8)
TRANSFORMERS = {  # as transformers' documentation writes it
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale_window": 1000},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "sub_group_size": 1e9,
    },
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}


def config_of(given: dict[str, Any], recipe: Recipe = BF16, **changes: Any) -> dict[str, Any]:
    return engine_config(given, recipe, **{"hidden_size": None, "grad_clip_norm": None, **changes})


def test_sizes_and_precision_are_the_recipes() -> None:
    found = config_of(TRANSFORMERS)
    assert found["train_micro_batch_size_per_gpu"] == 4
    assert found["gradient_accumulation_steps"] == 2
    assert "train_batch_size" not in found
    assert found["bf16"] == {"enabled": True}
    assert found["fp16"] == {"enabled": False, "loss_scale_window": 1000}


def test_optimizer_and_schedule_are_the_workloads() -> None:
    assert not {"optimizer", "scheduler"} & config_of(TRANSFORMERS).keys()


def test_sizes_that_are_left_to_be_filled_in_follow_the_models_hidden_size() -> None:
    assert config_of(TRANSFORMERS, hidden_size=100)["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "reduce_bucket_size": 10_000,
        "stage3_prefetch_bucket_size": 9_000,
        "stage3_param_persistence_threshold": 1_000,
        "sub_group_size": 1e9,
    }


def test_what_cannot_be_filled_in_is_left_to_deepspeed() -> None:
    found = config_of(TRANSFORMERS)
    assert found["zero_optimization"].keys() == {"stage", "offload_optimizer", "sub_group_size"}
    assert "gradient_clipping" not in found


@pytest.mark.parametrize(
    ("given", "used"), [({}, 1.0), ({"gradient_clipping": "auto"}, 1.0), ({"gradient_clipping": 0.5}, 0.5)]
)
def test_gradients_are_clipped_as_the_configuration_says_and_else_as_the_workload_does(
    given: dict[str, Any], used: float
) -> None:
    assert config_of(given, grad_clip_norm=1.0)["gradient_clipping"] == used


@pytest.mark.parametrize("precision", ["bf16-true", "fp16-true"])
def test_precisions_that_deepspeed_does_not_have_are_refused(precision: str) -> None:
    with pytest.raises(WorkloadError, match=f"DeepSpeed has no precision {precision}; take {precision[:4]}"):
        config_of({}, Recipe(micro_batch_size=4, precision=precision))


def test_what_is_given_stays_as_it_is() -> None:
    given = {"zero_optimization": {"stage": 1}}
    config_of(given)
    assert given == {"zero_optimization": {"stage": 1}}
