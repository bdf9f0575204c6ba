"""What mmengine's Runner calls the knobs, and agreement with mmengine itself where it is installed."""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from memplan.configs import KnobName, PatchStyle, RecipeChange, apply_patch, expressible, plan_patch, read_config
from memplan.configs.keys import differences
from memplan.configs.writing.verification import OWN_READER
from memplan.errors import ConfigError
from memplan.recipe import Precision, Recipe
from tests import making

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.configs import UserConfig

EXAMPLE = Path(__file__).parents[4] / "examples" / "depth_segmentation" / "configs"
HAS_MMENGINE = importlib.util.find_spec("mmengine") is not None
NEEDS_MMENGINE = pytest.mark.skipif(not HAS_MMENGINE, reason="mmengine is not installed")
LOADER = "train_dataloader = dict(batch_size=4)\n"
WRAPPER = "optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01))\n"
AMP = (
    "optim_wrapper = dict(type='AmpOptimWrapper', dtype='float16', loss_scale=512.,"
    " optimizer=dict(type='SGD', lr=0.01), clip_grad=dict(max_norm=1))\n"
)
config_of = partial(making.config_of, name="x.py")
BY_ITERATION = "train_cfg = dict(type='IterBasedTrainLoop', max_iters=100, val_interval=10)\n"


def patched(config: UserConfig, change: RecipeChange) -> dict[str, Any]:
    apply_patch(plan_patch(config, change))
    return read_config(config.path.with_name("x_memplan.py")).values


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        (WRAPPER, Precision.FP32),
        (AMP, Precision.FP16),
        (AMP.replace("float16", "bfloat16"), Precision.BF16),
    ],
)
def test_the_precision_is_the_wrappers(tmp_path: Path, text: str, precision: Precision) -> None:
    recipe = config_of(tmp_path, LOADER + text).recipe
    assert (recipe.micro_batch_size, recipe.precision, recipe.learning_rate) == (4, precision, 0.01)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("compile = True\n", "compile is left out"),
        ("compile = dict(mode='default')\n", "compile is left out"),
        ("compile = False\n", None),
        ("activation_checkpointing = ['backbone']\n", "activation_checkpointing names modules"),
    ],
)
def test_what_the_runner_does_to_the_model_itself_is_told(tmp_path: Path, text: str, told: str | None) -> None:
    notes = config_of(tmp_path, LOADER + WRAPPER + text).notes
    assert [told is not None and each.startswith(told) for each in notes] == ([] if told is None else [True])


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_autocast_is_no_choice_on_the_cpu_where_its_wrapper_refuses_to_be_built(
    tmp_path: Path, precision: Precision
) -> None:
    config = config_of(tmp_path, LOADER + WRAPPER)
    recipe = Recipe(micro_batch_size=4, precision=precision)
    assert expressible(config, recipe, on_cpu=True) == f"mmengine does not train in {precision} on the CPU"
    assert expressible(config, recipe) is None
    assert expressible(config, config.recipe, on_cpu=True) is None


def test_a_precision_key_of_the_users_own_is_left_to_their_program_on_the_cpu(tmp_path: Path) -> None:
    config = config_of(tmp_path, LOADER + WRAPPER + "dtype = 'float32'\n", knob_keys={"precision": "dtype"})
    assert expressible(config, Recipe(micro_batch_size=4, precision="bf16"), on_cpu=True) is None


def test_autocast_and_accumulation_are_added_to_the_wrapper(tmp_path: Path) -> None:
    config = config_of(tmp_path, LOADER + WRAPPER)
    recipe = Recipe(micro_batch_size=4, precision="bf16", accumulation_steps=2, learning_rate=0.02)
    assert patched(config, RecipeChange(recipe=recipe))["optim_wrapper"] == {
        "type": "AmpOptimWrapper",
        "optimizer": {"type": "SGD", "lr": 0.02},
        "accumulative_counts": 2,
        "dtype": "bfloat16",
    }
    assert read_config(tmp_path / "x_memplan.py").recipe == recipe


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "the new name changes the default work_dir to work_dirs/x_memplan"),
        ("work_dir = None\n", "the new name changes the default work_dir to work_dirs/x_memplan"),
        (
            "work_dir = 'runs/{{ fileBasenameNoExtension }}'\n",
            "the child keeps work_dir='runs/x': its run writes where that of x.py does",
        ),
    ],
)
def test_where_the_run_of_a_child_writes_is_told(tmp_path: Path, line: str, said: str) -> None:
    patch = plan_patch(config_of(tmp_path, LOADER + WRAPPER + line), RecipeChange(recipe=Recipe(micro_batch_size=8)))
    assert said in patch.notes
    assert sum("work_dir" in each for each in patch.notes) == 1
    apply_patch(patch)
    kept = read_config(tmp_path / "x_memplan.py").values.get("work_dir")
    assert (kept is None) == ("default" in said)


def test_leaving_autocast_keeps_the_rest_of_the_wrapper(tmp_path: Path) -> None:
    config = config_of(tmp_path, LOADER + AMP)
    recipe = Recipe(micro_batch_size=8, learning_rate=0.02)
    assert patched(config, RecipeChange(recipe=recipe))["optim_wrapper"] == {
        "type": "OptimWrapper",
        "optimizer": {"type": "SGD", "lr": 0.02},
        "clip_grad": {"max_norm": 1},
    }


def test_schedulers_are_rewritten_whole_with_a_remark_each(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    schedule = (
        "param_scheduler = [\n    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=30),\n"
        "    dict(type='CosineAnnealingLR', eta_min=1e-4, by_epoch=True, T_max=12)]\n"
    )
    config = config_of(tmp_path, LOADER + WRAPPER + BY_ITERATION + schedule)
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=0.02), iteration_factor=Fraction(1, 2))
    patch = plan_patch(config, change)
    golden("patches/mmengine_child.diff", patch.diff)
    assert {each.key: each.after for each in patch.changes} == {
        "train_dataloader.batch_size": "8",
        "optim_wrapper.optimizer.lr": "0.02",
        "param_scheduler.1.eta_min": "0.0002",
        "train_cfg.max_iters": "50",
        "train_cfg.val_interval": "5",
        "param_scheduler.0.end": "15",
    }


def test_in_place_follows_the_optimizer_to_its_name(tmp_path: Path) -> None:
    text = LOADER + "optimizer = dict(type='SGD', lr=0.01)\noptim_wrapper = dict(optimizer=optimizer)\n"
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=0.02))
    patch = plan_patch(config_of(tmp_path, text), change, style=PatchStyle.IN_PLACE)
    assert "optimizer = dict(type='SGD', lr=0.02)\n" in patch.files[0].patched_text


def test_a_batch_size_that_only_the_old_runners_read_is_told_apart(tmp_path: Path) -> None:
    text = WRAPPER + "data = dict(samples_per_gpu=2)\n"
    with pytest.raises(
        ConfigError, match=r"mmengine's Runner reads: data\.samples_per_gpu is for mmcv's runners; give"
    ):
        config_of(tmp_path, text)
    assert config_of(tmp_path, LOADER + text).recipe.micro_batch_size == 4


def test_lengths_in_epochs_stay(tmp_path: Path) -> None:
    text = "train_cfg = dict(by_epoch=True, max_epochs=12, val_interval=1)\n"
    text += "param_scheduler = dict(type='MultiStepLR', milestones=[8, 11])\n"
    config = config_of(tmp_path, LOADER + WRAPPER + text)
    assert config.knob(KnobName.ITERATIONS) is None


def test_a_wrapper_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    config = config_of(tmp_path, LOADER + "optim_wrapper = dict(type='MyWrapper', optimizer=dict(lr=0.1))\n")
    assert "'MyWrapper' is a wrapper" in str(expressible(config, Recipe(micro_batch_size=4, precision="bf16")))
    assert expressible(config, Recipe(micro_batch_size=8, learning_rate=0.2)) is None


def test_without_mmengine_memplans_reader_proves_the_patch_and_says_so(tmp_path: Path) -> None:
    config = config_of(tmp_path, LOADER + WRAPPER)
    patch = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=0.02)))
    assert (patch.verified_by == OWN_READER) is not HAS_MMENGINE
    assert sorted(each.name for each in tmp_path.iterdir()) == ["x.py"]


@NEEDS_MMENGINE
@pytest.mark.parametrize("path", sorted(EXAMPLE.glob("[!_]*/*.py")), ids=lambda each: each.stem)
def test_mmengine_reads_the_same_values(path: Path) -> None:
    config_class = pytest.importorskip("mmengine.config").Config
    assert not [*differences(config_class.fromfile(str(path)).to_dict(), read_config(path).values)]
