"""Lightning projects configured by Hydra, OmegaConf or LightningCLI."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from memplan.configs import PatchStyle, RecipeChange, apply_patch, expressible, plan_patch, read_config, undo_patch
from memplan.errors import ConfigError, PatchError
from memplan.recipe import Precision, Recipe
from tests.making import config_of, patched_text, write_files

if TYPE_CHECKING:
    from pathlib import Path


HEAD = "data:\n  batch_size: 4\ntrainer:\n  devices: 1\n"


@pytest.mark.parametrize(
    ("word", "precision"),
    [
        ("32", Precision.FP32),
        ("16-mixed", Precision.FP16),
        ("'16'", Precision.FP16),
        ("bf16-mixed", Precision.BF16),
        ("bf16-true", Precision.BF16_TRUE),
        ("null", Precision.FP32),
    ],
)
def test_the_trainer_says_the_precision(tmp_path: Path, word: str, precision: Precision) -> None:
    assert config_of(tmp_path, f"{HEAD}  precision: {word}\n").recipe.precision is precision


@pytest.mark.parametrize("own", ["", "  precision: 32\n"])
def test_fp16_is_no_choice_on_the_cpu_where_the_trainer_runs_bf16_in_its_place(tmp_path: Path, own: str) -> None:
    config, recipe = config_of(tmp_path, HEAD + own), Recipe(micro_batch_size=4, precision="fp16")
    assert expressible(config, recipe, on_cpu=True) == "Lightning's Trainer runs bf16 in place of fp16 on the CPU"
    assert expressible(config, recipe) is None
    assert expressible(config, Recipe(micro_batch_size=4, precision="bf16"), on_cpu=True) is None


@pytest.mark.parametrize("format_name", ["lightning-hydra", "lightning-cli"])
def test_a_batch_size_may_be_given_where_the_config_has_none(tmp_path: Path, format_name: str) -> None:
    text = "trainer: {max_epochs: 9}\nmodel: {lr: 0.1}\n"
    config = config_of(tmp_path, text, format_name=format_name, micro_batch_size=4)
    assert config.recipe == Recipe(micro_batch_size=4, learning_rate=0.1)


def test_missing_trainer_arguments_are_added_to_its_section(tmp_path: Path) -> None:
    config = config_of(tmp_path, f"{HEAD}  accelerator: gpu  # the last\nseed: 1\n")
    change = RecipeChange(recipe=Recipe(micro_batch_size=4, accumulation_steps=2, precision="bf16"))
    text = patched_text(config, change)
    added = "  accelerator: gpu  # the last\n  accumulate_grad_batches: 2\n  precision: bf16-mixed\nseed: 1\n"
    assert text.startswith(HEAD + added)


def test_arguments_are_added_before_nested_ones(tmp_path: Path) -> None:
    config = config_of(tmp_path, "data: {batch_size: 4}\ntrainer:\n  max_epochs: 9\n  logger:\n    - csv\n")
    change = RecipeChange(recipe=Recipe(micro_batch_size=4, accumulation_steps=2))
    assert "trainer:\n  accumulate_grad_batches: 2\n  max_epochs: 9\n  logger:" in patched_text(config, change)


def test_an_interpolated_floor_stays_and_a_literal_one_follows(tmp_path: Path) -> None:
    rates = "optimizer: {lr: 0.1}\nscheduler: {max_lr: '${optimizer.lr}', eta_min: 1e-6}\n"
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=0.2))
    text = patched_text(config_of(tmp_path, HEAD + rates), change)
    assert "optimizer: {lr: 0.2}\nscheduler: {max_lr: '${optimizer.lr}', eta_min: 2.0e-6}\n" in text


def test_batches_and_steps_are_counted_apart_and_fractions_stay(tmp_path: Path) -> None:
    lengths = "  max_steps: 100\n  val_check_interval: 60\n  limit_train_batches: 0.5\n  max_epochs: 9\n"
    change = RecipeChange(
        recipe=Recipe(micro_batch_size=8, accumulation_steps=2),
        iteration_factor=Fraction(1, 2),
        optimizer_step_factor=Fraction(1, 4),
    )
    patch = plan_patch(config_of(tmp_path, HEAD + lengths), change)
    changed = {each.key: each.after for each in patch.changes}
    assert (changed["trainer.max_steps"], changed["trainer.val_check_interval"]) == ("25", "30")
    assert not {"trainer.limit_train_batches", "trainer.max_epochs"} & set(changed)


def test_lengths_of_the_projects_own_are_named_and_follow_once_declared(tmp_path: Path) -> None:
    text = f"{HEAD}  max_steps: 100\nmodel: {{warmup_steps: 20}}\n"
    assert any(each.startswith("model.warmup_steps is left alone") for each in config_of(tmp_path, text).notes)
    declared = read_config(tmp_path / "x.yaml", knob_keys={"optimizer_steps": "model.warmup_steps"})
    assert not any("left alone" in each for each in declared.notes)
    change = RecipeChange(recipe=Recipe(micro_batch_size=8), optimizer_step_factor=Fraction(1, 2))
    changed = {each.key: each.after for each in plan_patch(declared, change).changes}
    assert (changed["trainer.max_steps"], changed["model.warmup_steps"]) == ("50", "10")


def test_which_batch_was_taken_and_what_it_may_mean_is_said(tmp_path: Path) -> None:
    config = config_of(tmp_path, "data: {batch_size: 4}\ntrain: {batch_size: 8}\ntrainer: {devices: 4}\n")
    assert "data.batch_size is taken as the batch size; train.batch_size is left alone" in config.notes
    assert any("divide it by their number" in each for each in config.notes)


def test_a_flat_file_has_no_children(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="cannot inherit"):
        plan_patch(config_of(tmp_path, HEAD), RecipeChange(recipe=Recipe(micro_batch_size=8)), style=PatchStyle.CHILD)


def test_a_missing_learning_rate_is_asked_for(tmp_path: Path) -> None:
    recipe = Recipe(micro_batch_size=8, learning_rate=0.1)
    assert "--map learning_rate=KEY" in str(expressible(config_of(tmp_path, HEAD), recipe))


def test_the_experiment_is_new_to_a_list_that_has_none(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text("data: {batch_size: 4}\n")
    config = config_of(tmp_path, "defaults:\n  - data\ntrainer:\n  devices: 1\n")
    patch = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8)))
    assert "use it with +experiment=memplan, after any other experiment" in patch.notes
    assert patch.override_line == "++data.batch_size=8"
    apply_patch(patch)
    again = read_config(tmp_path / "experiment" / "memplan.yaml")
    assert again.recipe.micro_batch_size == 8
    apply_patch(plan_patch(again, RecipeChange(recipe=Recipe(micro_batch_size=2))))
    assert read_config(tmp_path / "experiment" / "memplan.yaml").recipe.micro_batch_size == 2


@pytest.mark.parametrize(
    ("section", "format_name"),
    [("_target_: net.Data", "lightning-hydra"), ("class_path: net.Data", "lightning-cli"), ("x: 1", "lightning-cli")],
)
def test_hydra_and_the_command_line_name_their_classes_apart(tmp_path: Path, section: str, format_name: str) -> None:
    text = f"seed_everything: 1\ntrainer: {{devices: 1}}\ndata:\n  {section}\n  batch_size: 4\n"
    assert config_of(tmp_path, text).format_name == format_name


CLI = """\
trainer:
  max_epochs: 3
data:
  class_path: net.Data
  init_args:
    batch_size: 4
model:
  class_path: net.Net
  init_args:
    lr: 0.1
"""


def test_an_overlay_sets_only_what_changes_and_says_how_to_use_it(tmp_path: Path) -> None:
    config = config_of(tmp_path, CLI)
    patch = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8, precision="bf16", learning_rate=0.2)))
    assert patch.files[0].path == str(tmp_path / "x_memplan.yaml")
    lines = patch.files[0].patched_text.splitlines()
    assert lines[:4] == [
        "# Changes to x.yaml, written by memplan.",
        "data:",
        "  init_args:",
        "    batch_size: 8  # was 4: uses the device's memory",
    ]
    assert patch.notes == ("use it as --config x.yaml --config x_memplan.yaml",)
    assert patch.override_line == (
        "--data.init_args.batch_size=8 --model.init_args.lr=0.2 --trainer.precision=bf16-mixed"
    )


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    """What memplan lays over a config of LightningCLI."""
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=0.2))
    apply_patch(plan_patch(config_of(tmp_path, CLI), change))
    return tmp_path / "x_memplan.yaml"


def test_an_overlay_is_read_together_with_what_it_is_laid_over(overlay: Path) -> None:
    config = read_config(overlay)
    assert config.values["trainer"] == {"max_epochs": 3}
    assert config.recipe == Recipe(micro_batch_size=8, learning_rate=0.2)


def test_an_overlay_without_its_config_is_an_error_that_names_it(overlay: Path) -> None:
    overlay.with_name("x.yaml").unlink()
    with pytest.raises(ConfigError, match=r"x\.yaml: there is no such file"):
        read_config(overlay)


def test_an_overlay_edited_in_place_still_knows_what_it_is_laid_over(overlay: Path) -> None:
    change = RecipeChange(recipe=Recipe(micro_batch_size=2, learning_rate=0.05))
    apply_patch(plan_patch(read_config(overlay), change, style=PatchStyle.IN_PLACE))
    again = read_config(overlay)
    assert again.recipe == change.recipe
    assert again.original is not None
    assert again.original.recipe == Recipe(micro_batch_size=4, learning_rate=0.1)


def test_an_accumulation_schedule_is_left_as_it_is(tmp_path: Path) -> None:
    config = config_of(tmp_path, HEAD + "  accumulate_grad_batches: {0: 4}\n")
    assert "schedule by epoch" in str(expressible(config, Recipe(micro_batch_size=4, accumulation_steps=2)))
    assert expressible(config, Recipe(micro_batch_size=8)) is None


@pytest.mark.parametrize("is_kept", [False, True])
def test_undoing_takes_away_the_folder_that_was_made_unless_something_else_lies_in_it(
    tmp_path: Path, *, is_kept: bool
) -> None:
    (tmp_path / "data.yaml").write_text("data: {batch_size: 4}\n")
    config = config_of(tmp_path, "defaults:\n  - data\ntrainer:\n  devices: 1\n")
    patch = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8)))
    apply_patch(patch)
    if is_kept:
        (tmp_path / "experiment" / "own.yaml").write_text("a: 1\n")
    undo_patch(patch)
    assert (tmp_path / "experiment").exists() == is_kept
    assert not (tmp_path / "experiment" / "memplan.yaml").exists()


def test_an_experiment_of_the_users_own_has_no_children(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    config = config_of(tmp_path / "experiment", "# @package _global_\n" + HEAD)
    assert "name that one first, then this one" in config.notes[0]
    with pytest.raises(PatchError, match="cannot inherit"):
        plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8)), style=PatchStyle.CHILD)
    assert "  batch_size: 8\n" in patched_text(config, Recipe(micro_batch_size=8))


def tree_with_experiment(folder: Path, *, chosen: str) -> tuple[Path, Path]:
    """Write a Hydra tree, whose primary config sets a batch of 4, and an experiment that sets one of 6."""
    texts = {
        "train.yaml": f"defaults:\n  - _self_\n  - trainer: short\n  - experiment: {chosen}\ndata: {{batch_size: 4}}\n",
        "trainer/short.yaml": "max_steps: 100\n",
        "trainer/long.yaml": "max_steps: 300\n",
        "experiment/wide.yaml": "# @package _global_\ndefaults:\n  - override /trainer: long\ndata: {batch_size: 6}\n",
        "experiment/other.yaml": "# @package _global_\nseed: 1\n",
    }
    write_files(folder, texts)
    return folder / "train.yaml", folder / "experiment" / "wide.yaml"


@pytest.mark.parametrize("chosen", ["null", "other"])
def test_an_experiment_is_named_after_its_config_and_memplans_is_laid_over_both(tmp_path: Path, chosen: str) -> None:
    train, wide = tree_with_experiment(tmp_path, chosen=chosen)
    config = read_config(train, wide)
    assert config.recipe.micro_batch_size == 6
    assert config.values == {"trainer": {"max_steps": 300}, "data": {"batch_size": 6}}
    patch = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=12), optimizer_step_factor=Fraction(1, 2)))
    assert "use it with experiment=[wide,memplan]" in patch.notes
    apply_patch(patch)
    child = tmp_path / "experiment" / "memplan.yaml"
    again = read_config(child)
    assert again.values == {"trainer": {"max_steps": 150}, "data": {"batch_size": 12}}
    apply_patch(plan_patch(again, RecipeChange(recipe=Recipe(micro_batch_size=3))))
    assert read_config(child).values == {"trainer": {"max_steps": 300}, "data": {"batch_size": 3}}


def test_the_values_of_a_chosen_experiment_are_edited_in_the_files_that_set_them(tmp_path: Path) -> None:
    config = read_config(*tree_with_experiment(tmp_path, chosen="null"))
    change = RecipeChange(recipe=Recipe(micro_batch_size=12), optimizer_step_factor=Fraction(1, 2))
    apply_patch(plan_patch(config, change, style=PatchStyle.IN_PLACE))
    assert (tmp_path / "trainer" / "long.yaml").read_text() == "max_steps: 150\n"
    assert "data: {batch_size: 12}\n" in (tmp_path / "experiment" / "wide.yaml").read_text()
    assert read_config(tmp_path / "train.yaml").recipe.micro_batch_size == 4


def test_an_experiment_alone_whose_overrides_find_nothing_says_what_to_name_first(tmp_path: Path) -> None:
    train, wide = tree_with_experiment(tmp_path, chosen="null")
    with pytest.raises(ConfigError, match="its defaults override trainer, which nothing here chooses; name the config"):
        read_config(wide)
    with pytest.raises(ConfigError, match="name the primary config first"):
        read_config(train, config_file_of(tmp_path.parent / "elsewhere"))


def config_file_of(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "x.yaml").write_text("seed: 1\n")
    return folder / "x.yaml"


SUBCOMMANDS = (
    "fit:\n  seed_everything: 1\n"
    + "".join(f"  {line}\n" for line in CLI.splitlines())
    + "test:\n  ckpt_path: best.ckpt\n"
)


def test_a_file_for_several_subcommands_has_the_trainings_keys_under_fit(tmp_path: Path) -> None:
    config = config_of(tmp_path, SUBCOMMANDS)
    assert config.format_name == "lightning-cli"
    assert config.recipe == Recipe(micro_batch_size=4, learning_rate=0.1)
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, precision="bf16", learning_rate=0.2))
    patch = plan_patch(config, change)
    assert str(patch.override_line).startswith("fit --data.")
    assert "--trainer.precision=bf16-mixed" in str(patch.override_line)
    apply_patch(patch)
    assert read_config(tmp_path / "x_memplan.yaml").recipe == change.recipe


@pytest.mark.parametrize(("key", "word"), [("gpus", "16"), ("devices", "16-mixed")])
def test_the_old_trainer_is_told_the_precision_in_its_own_words(tmp_path: Path, key: str, word: str) -> None:
    config = config_of(tmp_path, HEAD.replace("devices", key))
    patch = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=4, precision="fp16")))
    assert f"  precision: {word}\n" in patch.files[0].patched_text


MODULE = """\
class Depth(LightningDataModule):
    def setup(self, stage):
        self.batch_size_per_device = self.hparams.batch_size {}
"""


@pytest.mark.parametrize(
    ("rest", "remark"),
    [
        ("// self.trainer.world_size", "depth.py:3 divides data.batch_size by the number of devices"),
        ("/ max(1, 2)", "data.batch_size is taken as the batch of one device"),
    ],
)
def test_what_a_batch_size_is_of_is_said(
    tmp_path: Path, rest: str, remark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "depth.py").write_text(MODULE.format(rest), encoding="utf-8")
    (tmp_path / "configs").mkdir()
    text = HEAD.replace("data:\n", "data:\n  _target_: src.depth.Depth\n").replace("devices: 1", "devices: 4")
    assert any(each.startswith(remark) for each in config_of(tmp_path / "configs", text).notes)


def test_each_value_of_a_hydra_tree_is_edited_in_its_own_group_file(tmp_path: Path) -> None:
    files = {
        "train.yaml": "defaults:\n  - data: depth\n  - trainer: gpu\n  - optimizer: adam\nseed: 1\n",
        "data/depth.yaml": "batch_size: 4  # 4 fit on one card\n",
        "trainer/gpu.yaml": "devices: 1\n",
        "optimizer/adam.yaml": "lr: 0.1",
    }
    write_files(tmp_path, files)
    config = read_config(tmp_path / "train.yaml")
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, precision="bf16", learning_rate=0.2))
    patch = plan_patch(config, change, style=PatchStyle.IN_PLACE)
    texts = {each.path.removeprefix(f"{tmp_path}/"): each.patched_text for each in patch.files}
    assert texts["data/depth.yaml"] == "batch_size: 8  # 4 fit on one card\n"
    assert texts["trainer/gpu.yaml"] == "devices: 1\nprecision: bf16-mixed\n"
    assert texts["optimizer/adam.yaml"] == "lr: 0.2"
    assert texts["train.yaml"].startswith(files["train.yaml"] + "# memplan: {")
    assert patch.notes == ("depth.yaml:1: the comment beside batch_size still says 4",)


def test_a_group_file_that_stands_at_two_places_is_edited_once(tmp_path: Path) -> None:
    (tmp_path / "rates").mkdir()
    (tmp_path / "rates" / "cosine.yaml").write_text("eta_min: 0.5\n")
    text = "defaults: [{rates@scheduler: cosine}, {rates@lr_scheduler: cosine}, _self_]\n"
    config = config_of(tmp_path, f"{text}{HEAD}optimizer:\n  lr: 1.0\n")
    recipe = Recipe(micro_batch_size=8, learning_rate=2.0)
    patch = plan_patch(config, RecipeChange(recipe=recipe), style=PatchStyle.IN_PLACE)
    assert [each.patched_text for each in patch.files[1:]] == ["eta_min: 1.0\n"]
