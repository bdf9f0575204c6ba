"""What mmcv's runners call the knobs, and how their optimizer hooks are rewritten."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from memplan.configs import KnobName, PatchStyle, RecipeChange, expressible, plan_patch, read_config
from memplan.configs.writing.applying import apply_patch
from memplan.recipe import Precision, Recipe
from tests import making

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.configs import UserConfig

ITERATIONS = "runner = dict(type='IterBasedRunner', max_iters=100)\n"
EPOCHS = "runner = dict(type='EpochBasedRunner', max_epochs=12)\n"
config_of = partial(making.config_of, name="x.py")
DATA = "data = dict(samples_per_gpu=4)\noptimizer = dict(type='SGD', lr=0.01)\n"


def patched(config: UserConfig, recipe: Recipe, **change: Any) -> dict[str, Any]:
    patch = plan_patch(config, RecipeChange(recipe=recipe, **change))
    apply_patch(patch)
    return read_config(config.path.with_name("x_memplan.py")).values


def iteration_keys(config: UserConfig) -> set[str]:
    return {each.key for each in config.knobs if each.name is KnobName.ITERATIONS}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("data = dict(samples_per_gpu=4)", "data.samples_per_gpu"),
        ("data = dict(imgs_per_gpu=4)", "data.imgs_per_gpu"),
        (
            "data = dict(samples_per_gpu=1, train_dataloader=dict(samples_per_gpu=4))",
            "data.train_dataloader.samples_per_gpu",
        ),
    ],
)
def test_the_micro_batch_is_found_under_each_of_its_names(tmp_path: Path, text: str, key: str) -> None:
    config = config_of(tmp_path, text)
    knob = config.knob(KnobName.MICRO_BATCH_SIZE)
    assert knob is not None
    assert (knob.key, config.recipe.micro_batch_size) == (key, 4)


@pytest.mark.parametrize(
    ("text", "precision", "steps"),
    [
        (ITERATIONS, Precision.FP32, 1),
        (ITERATIONS + "optimizer_config = dict()\nfp16 = dict()", Precision.FP32, 1),
        (ITERATIONS + "optimizer_config = dict(type='Fp16OptimizerHook')\nfp16 = dict()", Precision.FP16, 1),
        (ITERATIONS + "optimizer_config = dict(type='GradientCumulativeOptimizerHook', cumulative_iters=3)", "fp32", 3),
        (
            ITERATIONS + "optimizer_config = dict(type='GradientCumulativeFp16OptimizerHook', cumulative_iters=2)",
            Precision.FP16,
            2,
        ),
        (EPOCHS + "fp16 = dict(loss_scale=512.)", Precision.FP16, 1),
        (EPOCHS + "fp16 = None", Precision.FP32, 1),
    ],
)
def test_precision_and_accumulation_are_read_from_the_hook(
    tmp_path: Path, text: str, precision: str, steps: int
) -> None:
    recipe = config_of(tmp_path, DATA + text).recipe
    assert (recipe.precision, recipe.accumulation_steps, recipe.learning_rate) == (precision, steps, 0.01)


CLIP = "optimizer_config = dict(grad_clip=dict(max_norm=35))\n"
CLIPPED = {"grad_clip": {"max_norm": 35}}


@pytest.mark.parametrize(
    ("before", "wanted", "hook", "fp16"),
    [
        (CLIP + ITERATIONS, ("fp32", 1), CLIPPED, None),
        (
            CLIP + ITERATIONS,
            ("fp32", 4),
            {"type": "GradientCumulativeOptimizerHook", "cumulative_iters": 4, **CLIPPED},
            None,
        ),
        (CLIP + ITERATIONS, ("fp16", 1), {"type": "Fp16OptimizerHook", "loss_scale": "dynamic", **CLIPPED}, {}),
        (
            CLIP + ITERATIONS,
            ("fp16", 4),
            {
                "type": "GradientCumulativeFp16OptimizerHook",
                "cumulative_iters": 4,
                "loss_scale": "dynamic",
                **CLIPPED,
            },
            None,
        ),
        (CLIP + EPOCHS, ("fp16", 1), CLIPPED, {"loss_scale": "dynamic"}),
        (CLIP + EPOCHS + "fp16 = dict(loss_scale=512.)", ("fp32", 1), CLIPPED, None),
        (
            CLIP + EPOCHS + "fp16 = dict(loss_scale=512.)",
            ("fp16", 2),
            {"type": "GradientCumulativeFp16OptimizerHook", "cumulative_iters": 2, "loss_scale": 512.0, **CLIPPED},
            None,
        ),
        ("optimizer_config = dict(type='Fp16OptimizerHook')\n" + ITERATIONS, ("fp32", 1), {}, None),
        (
            "optimizer_config = dict(type='Fp16OptimizerHook', loss_scale=64., grad_clip=None)\nfp16 = dict()\n"
            + ITERATIONS,
            ("fp32", 1),
            {"grad_clip": None},
            None,
        ),
    ],
)
def test_the_hook_is_rewritten_with_clipping_kept(
    tmp_path: Path, before: str, wanted: tuple[str, int], hook: dict[str, Any], fp16: Any
) -> None:
    config = config_of(tmp_path, DATA + before)
    precision, steps = wanted
    recipe = Recipe(micro_batch_size=8, precision=precision, accumulation_steps=steps, learning_rate=0.02)
    values = patched(config, recipe)
    assert values["optimizer_config"] == hook
    assert values.get("fp16") == fp16
    again = read_config(tmp_path / "x_memplan.py").recipe
    assert again == recipe


def test_only_the_count_changes_where_the_hook_already_accumulates(tmp_path: Path) -> None:
    hook = "optimizer_config = dict(type='GradientCumulativeOptimizerHook', cumulative_iters=2)\n"
    config = config_of(tmp_path, DATA + ITERATIONS + hook)
    patch = plan_patch(
        config, RecipeChange(recipe=Recipe(micro_batch_size=4, accumulation_steps=8, learning_rate=0.01))
    )
    assert [each.key for each in patch.changes] == ["optimizer_config.cumulative_iters"]


def test_lengths_in_iterations_are_found_under_the_iteration_based_runner(tmp_path: Path) -> None:
    text = (
        "lr_config = dict(policy='step', step=[60, 80], warmup='linear', warmup_iters=10)\n"
        "checkpoint_config = dict(interval=10)\nevaluation = dict(interval=20)\nlog_config = dict(interval=5)\n"
    )
    assert iteration_keys(config_of(tmp_path, DATA + ITERATIONS + text)) == {
        "runner.max_iters",
        "lr_config.step",
        "lr_config.warmup_iters",
        "checkpoint_config.interval",
        "evaluation.interval",
    }
    assert iteration_keys(config_of(tmp_path, DATA + EPOCHS + text)) == {"lr_config.warmup_iters"}


def test_by_epoch_overrules_the_runner(tmp_path: Path) -> None:
    text = "lr_config = dict(step=[8], warmup_iters=5, by_epoch=True, warmup_by_epoch=True)\n"
    assert iteration_keys(config_of(tmp_path, DATA + ITERATIONS + text)) == {"runner.max_iters"}
    text = "checkpoint_config = dict(interval=500, by_epoch=False)\n"
    assert iteration_keys(config_of(tmp_path, DATA + EPOCHS + text)) == {"checkpoint_config.interval"}


def test_milestones_and_floor_follow_the_change(tmp_path: Path) -> None:
    text = "lr_config = dict(policy='step', step=[60, 80], min_lr=1e-4, by_epoch=False)\n"
    config = config_of(tmp_path, DATA + ITERATIONS + text)
    change = {"iteration_factor": Fraction(1, 2)}
    values = patched(config, Recipe(micro_batch_size=8, learning_rate=0.02), **change)
    assert values["lr_config"] == {"policy": "step", "step": [30, 40], "min_lr": 2e-4, "by_epoch": False}
    assert values["runner"]["max_iters"] == 50


def test_a_rate_the_runner_scales_itself_is_not_scaled_twice(tmp_path: Path) -> None:
    config = config_of(tmp_path, DATA + EPOCHS + "auto_scale_lr = dict(enable=True, base_batch_size=16)")
    assert config.recipe.learning_rate == 0.0025
    assert config.notes == ()  # an estimate neither shows a rate nor changes one
    wider = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=0.005)))
    assert [each.key for each in wider.changes] == ["data.samples_per_gpu"]
    assert any(each.startswith("auto_scale_lr is enabled") for each in wider.notes)
    recipe = Recipe(micro_batch_size=4, accumulation_steps=2, learning_rate=0.005)
    assert patched(config, recipe)["optimizer"]["lr"] == 0.02
    assert read_config(tmp_path / "x_memplan.py").recipe == recipe


def test_a_rate_that_a_flag_would_scale_again_is_warned_of(tmp_path: Path) -> None:
    config = config_of(tmp_path, DATA + EPOCHS + "auto_scale_lr = dict(enable=False, base_batch_size=16)")
    said = "do not pass --auto-scale-lr with the patched config: it already holds the scaled rate"
    assert said not in config.notes
    assert config.recipe.learning_rate == 0.01
    wider = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=0.02)))
    assert {each.key: each.value for each in wider.changes}["optimizer.lr"] == 0.02
    assert said in wider.notes
    same_rate = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8)))
    assert said not in same_rate.notes


@pytest.mark.parametrize(
    ("text", "recipe", "part"),
    [
        ("", Recipe(micro_batch_size=4, precision="bf16"), "no key for bf16"),
        ("", Recipe(micro_batch_size=4, precision="tf32"), "no key for tf32"),
        ("", Recipe(micro_batch_size=4, activation_checkpointing=True), "no key for activation_checkpointing"),
        (
            "optimizer_config = dict(type='DistOptimizerHook')",
            Recipe(micro_batch_size=4, accumulation_steps=2),
            "'DistOptimizerHook' is a hook memplan does not know",
        ),
    ],
)
def test_what_this_generation_cannot_say(tmp_path: Path, text: str, recipe: Recipe, part: str) -> None:
    assert part in str(expressible(config_of(tmp_path, DATA + ITERATIONS + text), recipe))


def test_an_unknown_hook_stays_where_only_the_batch_changes(tmp_path: Path) -> None:
    config = config_of(tmp_path, DATA + ITERATIONS + "optimizer_config = dict(type='DistOptimizerHook')")
    assert expressible(config, Recipe(micro_batch_size=8, learning_rate=0.02)) is None


def test_mapped_keys_win_over_the_hook(tmp_path: Path) -> None:
    text = DATA + ITERATIONS + "amp = dict(dtype='float16')\n"
    config = config_of(tmp_path, text, knob_keys={"precision": "amp.dtype"})
    assert config.recipe.precision is Precision.FP16
    patch = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=4, precision="bf16", accumulation_steps=2)))
    assert {each.key: each.after for each in patch.changes} == {
        "amp.dtype": "'bfloat16'",
        "optimizer_config": "dict(type='GradientCumulativeOptimizerHook', cumulative_iters=2)",
    }
    assert patch.changes[-1].reason == "accumulation 2: holds the global batch"


def test_checkpointing_is_turned_where_the_backbone_has_the_switch(tmp_path: Path) -> None:
    config = config_of(tmp_path, DATA + "model = dict(backbone=dict(with_cp=False))")
    recipe = Recipe(micro_batch_size=4, activation_checkpointing=True, learning_rate=0.01)
    assert patched(config, recipe)["model"]["backbone"]["with_cp"] is True


def test_in_place_adds_a_section_that_no_file_sets(tmp_path: Path) -> None:
    config = config_of(tmp_path, DATA + ITERATIONS)
    change = RecipeChange(recipe=Recipe(micro_batch_size=4, accumulation_steps=2, learning_rate=0.01))
    patch = plan_patch(config, change, style=PatchStyle.IN_PLACE)
    added = "optimizer_config = dict(type='GradientCumulativeOptimizerHook', cumulative_iters=2)\n"
    assert patch.files[0].patched_text.startswith(DATA + ITERATIONS + added + "# memplan: ")
