"""Arguments change together with the DeepSpeed settings and the accelerate file they name, and "auto" stays."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from memplan.configs import RecipeChange, apply_patch, expressible, for_replicas, plan_patch, read_config, undo_patch
from memplan.errors import ConfigError, OutputError
from memplan.recipe import Recipe
from tests.making import config_of, patched_text

if TYPE_CHECKING:
    from memplan.configs import UserConfig

pytestmark = pytest.mark.usefixtures("memplans_reader_alone")

ARGUMENTS = """\
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
learning_rate: 2.0e-4
max_steps: 1000
fp16: true
output_dir: out
deepspeed: ds.json
"""
DEEPSPEED = """\
{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": "auto",
  "fp16": {"enabled": true, "initial_scale_power": 16},
  "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": 0.0002, "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 1000, "warmup_num_steps": "auto"}}
}
"""
CHANGE = RecipeChange(
    recipe=Recipe(micro_batch_size=16, accumulation_steps=2, precision="bf16", learning_rate=8e-4, world_size=1),
    iteration_factor=Fraction(1, 4),
    optimizer_step_factor=Fraction(1, 4),
)


def test_bf16_on_the_cpu_needs_no_word_in_the_arguments_where_the_launcher_sets_it(tmp_path: Path) -> None:
    (tmp_path / "launch.yaml").write_text("distributed_type: 'NO'\nmixed_precision: fp16\n")
    (tmp_path / "x.yaml").write_text("per_device_train_batch_size: 4\noutput_dir: out\n")
    config = read_config(tmp_path / "x.yaml", tmp_path / "launch.yaml")
    assert expressible(config, Recipe(micro_batch_size=4, precision="bf16"), on_cpu=True) is None


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "x.yaml").write_text(ARGUMENTS)
    (tmp_path / "ds.json").write_text(DEEPSPEED)
    return tmp_path


def texts(folder: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in folder.iterdir()}


def test_both_files_change_and_what_is_auto_stays(project: Path) -> None:
    patch = plan_patch(read_config(project / "x.yaml"), CHANGE)
    assert [Path(each.path).name for each in patch.files] == ["x.yaml", "ds.json", "ds.json.memplan"]
    apply_patch(patch)
    expected = json.loads(DEEPSPEED)
    expected |= {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 16}
    expected["fp16"]["enabled"] = False
    expected["optimizer"]["params"]["lr"] = 8e-4
    expected["scheduler"]["params"]["total_num_steps"] = 250
    assert json.loads((project / "ds.json").read_text()) == expected
    assert read_config(project / "x.yaml").recipe == CHANGE.recipe


def test_the_change_is_undone_in_all_files(project: Path) -> None:
    before = texts(project)
    patch = plan_patch(read_config(project / "x.yaml"), CHANGE)
    apply_patch(patch)
    undo_patch(patch)
    assert texts(project) == before


def test_a_second_run_on_both_patched_files_changes_nothing(project: Path) -> None:
    apply_patch(plan_patch(read_config(project / "x.yaml"), CHANGE))
    again = plan_patch(read_config(project / "x.yaml"), CHANGE)
    assert (again.diff, again.changes) == ("", ())


def test_where_one_file_cannot_be_written_none_is(project: Path) -> None:
    patch = plan_patch(read_config(project / "x.yaml"), CHANGE)
    (project / "ds.json.memplan").mkdir()
    before = {each: each.read_bytes() for each in project.iterdir() if each.is_file()}
    with pytest.raises((OutputError, ConfigError)):
        apply_patch(patch)
    assert {each: each.read_bytes() for each in project.iterdir() if each.is_file()} == before


def test_a_command_line_cannot_say_what_lies_in_another_file(project: Path) -> None:
    assert plan_patch(read_config(project / "x.yaml"), CHANGE).override_line is None
    (project / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}')
    assert plan_patch(read_config(project / "x.yaml"), CHANGE).override_line is not None


def test_every_change_says_its_file(project: Path) -> None:
    changes = plan_patch(read_config(project / "x.yaml"), CHANGE).changes
    found = {(Path(each.path).name, each.key) for each in changes}
    assert {("x.yaml", "learning_rate"), ("ds.json", "optimizer.params.lr")} <= found


def test_batches_that_contradict_each_other_are_refused(project: Path) -> None:
    (project / "ds.json").write_text(DEEPSPEED.replace("64", "60"))
    with pytest.raises(ConfigError, match=r"ds.json: train_batch_size=60 is no multiple of the 8 samples"):
        read_config(project / "x.yaml")


def test_a_broken_deepspeed_file_is_named(project: Path) -> None:
    (project / "ds.json").write_text(DEEPSPEED[:40])
    with pytest.raises(ConfigError, match=r"ds.json:\d+: invalid JSON"):
        read_config(project / "x.yaml")


def test_a_file_that_leaves_all_to_the_arguments_is_said_to(project: Path) -> None:
    (project / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}')
    config = read_config(project / "x.yaml")
    assert config.companions == ()
    on_settings, on_sharding = config.notes
    assert on_settings == "ds.json is all 'auto', so it follows the arguments"
    assert on_sharding.startswith("zero_optimization.stage=2 shards model or optimizer")


SECTION = """\
  train_batch_size: 64
  train_micro_batch_size_per_gpu: 4  # four
  gradient_accumulation_steps: auto
  optimizer: {type: AdamW, params: {lr: 0.0002, weight_decay: auto}}
  fp16: {enabled: true}
  scheduler: {params: {total_num_steps: 1000, warmup_num_steps: auto}}
"""


def test_settings_written_out_among_the_arguments_change_in_place(tmp_path: Path) -> None:
    config = config_of(tmp_path, ARGUMENTS.replace("ds.json", "\n") + SECTION)
    assert [each.within for each in config.companions] == ["deepspeed"]
    assert config.notes[0].startswith("the deepspeed section sets train_micro_batch_size_per_gpu, train_batch_size, ")
    patch = plan_patch(config, CHANGE)
    expected = SECTION.replace("64", "256").replace("_gpu: 4", "_gpu: 16").replace("0.0002", "0.0008")
    expected = expected.replace("enabled: true", "enabled: false").replace(
        "total_num_steps: 1000", "total_num_steps: 250"
    )
    assert expected in patch.files[0].patched_text
    assert [each.path for each in patch.files] == [str(tmp_path / "x.yaml")]
    assert patch.override_line is None


def test_a_second_run_on_patched_settings_starts_from_the_original(tmp_path: Path) -> None:
    apply_patch(plan_patch(config_of(tmp_path, ARGUMENTS.replace("ds.json", "\n") + SECTION), CHANGE))
    assert plan_patch(read_config(tmp_path / "x.yaml"), CHANGE).diff == ""
    half = replace(CHANGE, recipe=replace(CHANGE.recipe, micro_batch_size=8), optimizer_step_factor=Fraction(1, 2))
    apply_patch(plan_patch(read_config(tmp_path / "x.yaml"), half))
    section = yaml.safe_load((tmp_path / "x.yaml").read_text())["deepspeed"]
    assert section["scheduler"]["params"] == {"total_num_steps": 500, "warmup_num_steps": "auto"}
    assert section["train_batch_size"] == 128


@pytest.mark.parametrize(
    ("section", "notes"),
    [
        (" {}", ()),
        (
            " {zero_optimization: {stage: 2}}",
            ("the deepspeed section is all 'auto', so it follows the arguments", "zero_optimization.stage=2 shards"),
        ),
        (" not-there.json", ("what not-there.json sets and is not 'auto' must agree with the patched values; ",)),
    ],
)
def test_settings_that_leave_all_to_the_arguments_are_left_alone(
    tmp_path: Path, section: str, notes: tuple[str, ...]
) -> None:
    text = ARGUMENTS.replace(" ds.json", section)
    config = config_of(tmp_path, text)
    assert config.companions == ()
    assert len(config.notes) == len(notes)
    assert all(found.startswith(each) for found, each in zip(config.notes, notes, strict=True))
    assert f"deepspeed:{section}\n" in patched_text(config, CHANGE)


LAUNCH = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  gradient_accumulation_steps: 2
  zero_stage: 2
mixed_precision: 'no'  # or bf16
num_processes: 4
"""
FLAGS = "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --learning_rate 2e-4 --output_dir out"
SCRIPT = f'CONFIG=launch.yaml\naccelerate launch --config_file "$CONFIG" run.py {FLAGS}\n'
TRL = """\
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
learning_rate: 2.0e-4
output_dir: out
accelerate_config: launch.yaml
"""
LAUNCHED = {"x.sh": SCRIPT, "x.yaml": TRL, "named.yaml": TRL.replace("accelerate_config: launch.yaml\n", "")}
WIDER = RecipeChange(recipe=Recipe(micro_batch_size=16, accumulation_steps=1, precision="bf16", learning_rate=4e-4))


@pytest.fixture(params=LAUNCHED)
def launched(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "launch.yaml").write_text(LAUNCH)
    path = tmp_path / str(request.param)
    path.write_text(LAUNCHED[path.name])
    return path


def read_launched(path: Path) -> UserConfig:
    """Read arguments with their launch file, which they name or the user does."""
    return read_config(path, *([path.parent / "launch.yaml"] if path.name == "named.yaml" else []))


def test_the_launch_file_changes_with_the_arguments_it_is_named_beside(launched: Path) -> None:
    config = read_launched(launched)
    assert config.recipe.precision == "fp32"
    assert for_replicas(config, None).recipe.world_size == 4
    *on_launch_file, on_sharding = config.notes
    assert on_launch_file == [
        "launch.yaml sets mixed_precision, deepspeed_config.gradient_accumulation_steps: it is changed with this file",
        "launch.yaml: num_processes=4 is taken as the number of replicas",
    ]
    assert on_sharding.startswith("deepspeed_config.zero_stage=2 shards model or optimizer")
    apply_patch(plan_patch(config, WIDER))
    changed = LAUNCH.replace("'no'", "'bf16'").replace("accumulation_steps: 2", "accumulation_steps: 1")
    assert (launched.parent / "launch.yaml").read_text().startswith(f"{changed}# memplan: ")
    assert "bf16" not in launched.read_text().replace("memplan", "")
    assert read_launched(launched).recipe == WIDER.recipe
    assert plan_patch(read_launched(launched), WIDER).diff == ""


def test_a_switch_among_the_arguments_goes_before_the_launch_file(launched: Path) -> None:
    switch = " --fp16 True\n" if launched.suffix == ".sh" else "\nfp16: true\n"
    launched.write_text(launched.read_text().rstrip("\n") + switch)
    config = read_launched(launched)
    assert config.recipe.precision == "fp16"
    kept = replace(WIDER, recipe=replace(WIDER.recipe, precision="fp16"))
    assert "mixed_precision" not in {each.key for each in plan_patch(config, kept).changes}
    changes = {each.key: each.value for each in plan_patch(config, WIDER).changes}
    assert (changes["fp16"], changes["bf16"], changes["mixed_precision"]) == (False, True, "bf16")


@pytest.mark.parametrize(("before", "wanted", "after"), [("bf16", "tf32", "no"), ("bf16", "fp32", "no")])
def test_the_launch_file_is_written_in_accelerates_words(launched: Path, before: str, wanted: str, after: str) -> None:
    (launched.parent / "launch.yaml").write_text(LAUNCH.replace("'no'", before))
    config = read_launched(launched)
    assert config.recipe.precision == before
    patch = plan_patch(config, replace(WIDER, recipe=replace(WIDER.recipe, precision=wanted)))
    changes = {each.key: each.value for each in patch.changes}
    assert (changes["mixed_precision"], changes.get("tf32")) == (after, True if wanted == "tf32" else None)


def test_a_precision_of_the_launch_file_that_is_not_known_is_named(launched: Path) -> None:
    (launched.parent / "launch.yaml").write_text(LAUNCH.replace("'no'", "fp8"))
    with pytest.raises(ConfigError, match=r"launch.yaml: mixed_precision='fp8' is not a precision memplan knows"):
        read_launched(launched)


def test_a_loop_of_its_own_gets_its_precision_from_the_launch_file_alone(tmp_path: Path) -> None:
    (tmp_path / "launch.yaml").write_text(LAUNCH)
    text = "accelerate launch --config_file=launch.yaml train.py --batch_size 4 --lr 0.1\n"
    config = config_of(tmp_path, text, name="x.sh")
    recipe = Recipe(micro_batch_size=8, precision="bf16", learning_rate=0.2)
    assert expressible(config, recipe) is None
    assert "no way to say tf32" in str(expressible(config, replace(recipe, precision="tf32")))
    apply_patch(plan_patch(config, RecipeChange(recipe=recipe)))
    assert (tmp_path / "x.sh").read_text().startswith(text.replace("4 --lr 0.1", "8 --lr 0.2"))
    assert "mixed_precision: 'bf16'" in (tmp_path / "launch.yaml").read_text()


def test_a_deepspeed_file_that_the_launch_file_names_changes_too(launched: Path) -> None:
    named = "  deepspeed_config_file: ds.json\n  zero_stage"
    (launched.parent / "launch.yaml").write_text(LAUNCH.replace("  zero_stage", named))
    (launched.parent / "ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": "auto"}'
    )
    apply_patch(plan_patch(read_launched(launched), WIDER))
    found = json.loads((launched.parent / "ds.json").read_text())
    assert found == {"train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": "auto"}


@pytest.mark.parametrize("name", ["x.sh", "x.yaml"])
def test_a_launch_file_that_is_not_there_is_said_to_be_left_alone(tmp_path: Path, name: str) -> None:
    config = config_of(tmp_path, LAUNCHED[name], name=name)
    assert config.companions == ()
    assert config.notes[-1].startswith("what launch.yaml sets and is not 'auto' must agree")


@pytest.mark.parametrize("program", ["run.py --output_dir out --per_device_train_batch_size", "train.py --batch_size"])
def test_what_the_launcher_is_told_changes_in_the_command(tmp_path: Path, program: str) -> None:
    text = f"P=fp16\naccelerate launch --mixed_precision=$P --multi_gpu {program} 4 --gradient_accumulation_steps 2\n"
    config = config_of(tmp_path, text, name="x.sh")
    assert config.recipe.precision == "fp16"
    assert "accelerate launch sets mixed_precision: it is changed with the rest of the arguments" in config.notes
    recipe = replace(config.recipe, micro_batch_size=8, precision="bf16")
    patch = plan_patch(config, RecipeChange(recipe=recipe))
    assert patch.files[0].patched_text.startswith(text.replace("fp16", "bf16").replace(" 4 ", " 8 "))
    assert patch.override_line is None
    apply_patch(patch)
    assert read_config(tmp_path / "x.sh").recipe == recipe
    assert plan_patch(read_config(tmp_path / "x.sh"), RecipeChange(recipe=recipe)).diff == ""


def test_a_precision_that_launcher_and_program_share_is_written_at_each(tmp_path: Path) -> None:
    text = "P=fp16\naccelerate launch --mixed_precision $P train.py --batch_size 4 --mixed_precision $P\n"
    config = config_of(tmp_path, text, name="x.sh")
    apply_patch(plan_patch(config, RecipeChange(recipe=replace(config.recipe, precision="fp32"))))
    assert (tmp_path / "x.sh").read_text().startswith(text.replace("$P", "no"))
