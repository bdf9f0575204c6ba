"""Taking a plan over: as overrides, as a patch, into an object, as JSON."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from memplan.configs import read_config
from memplan.errors import PatchError, UsageError
from memplan.plans import PlanRequest
from memplan.plans.changes import change_to, original_recipe, patch_of
from memplan.probe.records import from_json, to_json
from memplan.recipe import Precision, Recipe
from memplan.recommend.scaling import LearningRateRule
from tests.making import plan

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.plans import Plan

NOW = Recipe(micro_batch_size=4, learning_rate=0.1)
THEN = Recipe(micro_batch_size=16, precision="bf16", learning_rate=0.4)
KEYS = {
    "micro_batch_size": "data.batch_size",
    "precision": "amp.enabled",
    "amp_dtype": "amp.dtype",
    "learning_rate": "optim.lr",
    "optimizer_steps": "optim.steps",
}
CONFIG = """\
data:
  batch_size: 4
amp: {enabled: false, dtype: float16}
optim:
  lr: 0.1
  steps: 400   # optimizer steps
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "x.yaml").write_text(CONFIG)
    return tmp_path / "x.yaml"


def plan_for(path: Path) -> Plan:
    """The plan as the planner makes it for a config: with the patch for it."""
    config = read_config(path, knob_keys=KEYS)
    change = change_to(THEN, original_recipe(config, NOW, PlanRequest()), PlanRequest(), why="seen")
    return plan(NOW, THEN, config_path=str(path), config_patch=patch_of(config, change, PlanRequest()))


def test_a_plan_is_printed_with_its_recipe_and_its_reasons() -> None:
    assert str(plan(NOW, THEN, reasons=("It fits.",), notes=("check the rate",))).splitlines() == [
        "net on cpu: bf16, 16 x 1, learning rate 0.4",
        "It fits.",
        "note: check the rate",
    ]


def test_a_plan_for_a_workload_gives_all_knobs_by_name() -> None:
    assert plan(NOW, THEN).overrides() == {
        "micro_batch_size": 16,
        "accumulation_steps": 1,
        "precision": "bf16",
        "learning_rate": 0.4,
        "activation_checkpointing": False,
    }


def test_a_learning_rate_that_is_the_workloads_own_is_not_named() -> None:
    assert "learning_rate" not in plan(Recipe(micro_batch_size=4), Recipe(micro_batch_size=8)).overrides()


def test_knobs_are_named_as_the_caller_names_them() -> None:
    line = plan(NOW, THEN).overrides("flags", knobs={"micro_batch_size": "batch-size", "learning_rate": "lr"})
    assert line.startswith("--batch-size 16 --accumulation_steps 1 --precision bf16 --lr 0.4")


def test_a_name_for_something_that_is_no_knob_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no knob 'batch'"):
        plan(NOW, THEN).overrides(knobs={"batch": "b"})


def test_an_unknown_style_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="'argparse' is not known; use one of dict, flags, hydra"):
        plan(NOW, THEN).overrides("argparse")


def test_a_plan_for_a_config_gives_what_changes_in_it_by_its_keys(config: Path) -> None:
    assert plan_for(config).overrides() == {
        "data.batch_size": 16,
        "optim.lr": 0.4,
        "optim.steps": 100,
        "amp.enabled": True,
        "amp.dtype": "bfloat16",
    }


def test_a_plan_that_changes_nothing_in_a_config_overrides_nothing(config: Path) -> None:
    found = plan(NOW, NOW, config_path=str(config))
    assert found.overrides() == {}
    assert found.overrides("cfg-options") == ""


@pytest.mark.parametrize(
    ("style", "line"),
    [
        ("hydra", "++data.batch_size=16 ++optim.lr=0.4 ++optim.steps=100 ++amp.enabled=true ++amp.dtype=bfloat16"),
        (
            "cfg-options",
            "--cfg-options data.batch_size=16 optim.lr=0.4 optim.steps=100 amp.enabled=True amp.dtype=bfloat16",
        ),
        ("key-value", "data.batch_size 16 optim.lr 0.4 optim.steps 100 amp.enabled True amp.dtype bfloat16"),
        ("flags", "--data.batch_size 16 --optim.lr 0.4 --optim.steps 100 --amp.enabled True --amp.dtype bfloat16"),
    ],
)
def test_a_line_is_written_in_the_style_asked_for(config: Path, style: str, line: str) -> None:
    assert plan_for(config).overrides(style) == line


def test_a_style_of_a_framework_gives_arguments_of_its_class() -> None:
    found = plan(NOW, Recipe(micro_batch_size=16, accumulation_steps=2, precision="bf16"))
    assert found.overrides("transformers") == {
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "bf16": True,
        "fp16": False,
        "gradient_checkpointing": False,
    }
    assert found.overrides("lightning") == {"accumulate_grad_batches": 2, "precision": "bf16-mixed"}
    assert found.overrides("accelerate") == {"gradient_accumulation_steps": 2, "mixed_precision": "bf16"}


def test_a_patch_for_the_plans_own_config_is_the_one_it_carries(config: Path) -> None:
    made = plan_for(config)
    assert made.config_patch is not None
    assert _changes(made.patch(config, knobs=KEYS)) == _changes(made.config_patch.diff)


def test_a_patch_for_another_config_scales_that_ones_own_rate(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(CONFIG.replace("batch_size: 4", "batch_size: 8").replace("lr: 0.1", "lr: 0.02"))
    diff = plan(NOW, THEN).patch(other, knobs=KEYS)
    assert "+  lr: 0.04" in diff  # from 8 to 16 samples
    subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=tmp_path, check=True)  # noqa: S607 - the user's git
    assert read_config(other, knob_keys=KEYS).recipe == Recipe(
        micro_batch_size=16, precision="bf16", learning_rate=0.04
    )
    assert plan(NOW, THEN).patch(other, knobs=KEYS) == ""


def test_a_patch_that_cannot_be_written_says_why_and_changes_nothing(config: Path) -> None:
    keys = {name: key for name, key in KEYS.items() if name not in ("precision", "amp_dtype")}
    with pytest.raises(PatchError, match="no key for precision"):
        plan(NOW, THEN).patch(config, knobs=keys)
    assert config.read_text() == CONFIG


def test_json_carries_a_schema_version_and_the_recipe() -> None:
    document = json.loads(plan(NOW, THEN).to_json())
    assert document["schema_version"] == 1
    assert document["recipe"]["micro_batch_size"] == 16
    assert document["request"]["max_utilisation"] == 0.8


def test_a_stored_plan_is_read_back_with_what_was_asked_for(config: Path) -> None:
    made = plan(NOW, THEN, request=PlanRequest(budget_bytes=2**30, precisions=(Precision.FP32,), world_size=4))
    assert from_json(type(made), to_json(made)) == made
    assert from_json(type(made), to_json(plan_for(config))) == plan_for(config)


def _changes(diff: str) -> list[str]:
    """The changed lines, without the reasons in the marker, which tell how a plan came about."""
    lines = [each for each in diff.splitlines() if each[:1] in "+-" and each[:3] not in ("+++", "---")]
    return [each for each in lines if not each.startswith("+# memplan:")]


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (PlanRequest(), "scaled by the linear rule, global batch 4 to 16"),
        (PlanRequest(global_batch_size=16), "the original rate is kept, global batch 4 to 16"),
        (
            PlanRequest(global_batch_size=16, learning_rate_rule=LearningRateRule.SQRT),
            "scaled by the sqrt rule, global batch 4 to 16",
        ),
    ],
)
def test_the_reason_for_a_rate_says_which_rule_was_used(request_: PlanRequest, reason: str) -> None:
    assert change_to(THEN, NOW, request_, why="seen").reasons["learning_rate"] == reason


def test_lengths_follow_the_samples_of_a_pass_or_of_an_optimizer_step() -> None:
    held = Recipe(micro_batch_size=16)
    now = Recipe(micro_batch_size=4, accumulation_steps=4)
    reasons = change_to(held, now, PlanRequest(global_batch_size=16), why="seen").reasons
    assert reasons["iterations"] == "counted in forward/backward passes, 4 to 16 samples each"
    assert reasons["optimizer_steps"] == "counted in optimizer steps, global batch 16 to 16"
