"""What --world-size means for a config: its batch is each replica's own, or that of all of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from memplan.configs import apply_patch, for_replicas, read_config, reference_world_size
from memplan.configs.keys import get
from memplan.errors import ConfigError
from memplan.planning.commands import CommandOptions, subject_of_command
from memplan.planning.subject import subject_of_config
from memplan.planning.writing.patching import scale, write_patch
from memplan.planning.writing.rate_check import with_proven_rate
from memplan.plans import PlanRequest
from memplan.recipe import Recipe
from tests.making import CPU, config_of, plan

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.patches import ConfigPatch
    from memplan.planning.subject import Subject

pytestmark = pytest.mark.usefixtures("memplans_reader_alone")

YACS = "SOLVER:\n  IMS_PER_BATCH: 16\n  BASE_LR: 0.02\n  MAX_ITER: 90000\n"
LAZY = """\
from detectron2.config import LazyCall as L
optimizer = L(dict)(lr=0.02)
train = dict(max_iter=90000, amp=dict(enabled=False))
dataloader = dict(train=L(dict)(total_batch_size=16))
"""
YOLO = "batch: 16\nimgsz: 640\nlr0: 0.01\n"
TITAN = "[training]\nlocal_batch_size = 4\nglobal_batch_size = 16\nsteps = 1000\n"
TOTAL_ONLY = '{"train_batch_size": 16, "optimizer": {"type": "SGD", "params": {"lr": 0.02}}}'
TOTAL_AND_OWN = '{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4}'
ITSELF = "per_device_train_batch_size: 16\nlearning_rate: 0.02\n"


def subject_of(folder: Path, name: str, text: str, world_size: int) -> Subject:
    return subject_of_config(config_of(folder, text, name=name, workload_target="a:b"), world_size=world_size)


def patched(subject: Subject, recipe: Recipe, folder: Path, name: str) -> Subject:
    """The subject of the config after the patch for a recipe, for as many replicas."""
    recipe = scale(recipe, subject, PlanRequest(), "SGD").recipe
    patch = write_patch(recipe, subject, PlanRequest(), why="seen")
    assert patch is not None
    apply_patch(patch)
    found = read_config(folder / name, workload_target="a:b")
    return subject_of_config(found, world_size=recipe.world_size)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("x.yaml", YACS, Recipe(micro_batch_size=8, learning_rate=0.02, world_size=2)),
        ("x.yaml", "SOLVER: {MAX_ITER: 10}\n", Recipe(micro_batch_size=8, learning_rate=0.001, world_size=2)),
        ("x.py", LAZY, Recipe(micro_batch_size=8, learning_rate=0.02, world_size=2)),
        ("x.yaml", YOLO, Recipe(micro_batch_size=8, accumulation_steps=4, precision="fp16", world_size=2)),
        ("x.toml", TITAN, Recipe(micro_batch_size=4, accumulation_steps=2, precision="bf16", world_size=2)),
        ("x.json", TOTAL_ONLY, Recipe(micro_batch_size=8, learning_rate=0.02, world_size=2)),
        ("x.json", TOTAL_AND_OWN, Recipe(micro_batch_size=4, accumulation_steps=2, world_size=2)),
        ("x.yaml", ITSELF, Recipe(micro_batch_size=16, learning_rate=0.02, world_size=2)),
    ],
)  # fmt: skip
def test_a_batch_of_all_replicas_is_shared_among_them(tmp_path: Path, name: str, text: str, expected: Recipe) -> None:
    assert subject_of(tmp_path, name, text, 2).current == expected


@pytest.mark.parametrize(("name", "text", "key"), [
    ("x.yaml", YACS, "SOLVER.IMS_PER_BATCH"), ("x.py", LAZY, "dataloader.train.total_batch_size")
])  # fmt: skip
def test_rate_and_length_follow_the_batch_of_all_replicas(tmp_path: Path, name: str, text: str, key: str) -> None:
    subject = subject_of(tmp_path, name, text, 2)
    child = name.replace(".", "_memplan.")
    once = patched(subject, Recipe(micro_batch_size=32, world_size=2), tmp_path, child)  # 16 to 64 samples
    assert once.config is not None
    assert get(once.config.values, key) == 64
    assert once.current == Recipe(micro_batch_size=32, learning_rate=0.08, world_size=2)
    lengths = {"x.yaml": "SOLVER.MAX_ITER", "x.py": "train.max_iter"}
    assert get(once.config.values, lengths[name]) == 22500
    assert scale(once.current, once, PlanRequest(), "SGD").recipe == once.current


@pytest.mark.parametrize(
    ("launcher", "steps", "replicas"),
    [
        ("torchrun --nnodes 2 --nproc_per_node=$GPUS", 1, 8),
        ("accelerate launch --num_processes=$((GPUS / 2))", 4, 2),
        ("python", 8, 1),
    ],
)
def test_a_launch_script_is_for_the_replicas_that_it_starts(
    tmp_path: Path, launcher: str, steps: int, replicas: int
) -> None:
    text = f"GPUS=4\n{launcher} train.py --batch-size 4 --global-batch-size 32\n"
    config = config_of(tmp_path, text, name="x.sh", workload_target="a:b")
    current = Recipe(micro_batch_size=4, accumulation_steps=steps, world_size=replicas)
    assert subject_of_config(config).current == current
    assert subject_of_config(config, world_size=4).current == replace(current, accumulation_steps=2, world_size=4)


def test_a_config_patched_for_one_replica_is_the_same_for_two(tmp_path: Path) -> None:
    alone = subject_of(tmp_path, "x.yaml", YACS, 1)
    patched(alone, Recipe(micro_batch_size=64), tmp_path, "x_memplan.yaml")
    both = subject_of_config(read_config(tmp_path / "x_memplan.yaml", workload_target="a:b"), world_size=2)
    assert both.current == Recipe(micro_batch_size=32, learning_rate=0.08, world_size=2)
    assert scale(both.current, both, PlanRequest(), "SGD").recipe == both.current


@pytest.mark.parametrize(("name", "text"), [("x.yaml", YACS), ("x.json", TOTAL_AND_OWN)])
def test_what_the_replicas_cannot_share_is_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(ConfigError, match="=16 cannot be shared by 3 replicas"):
        subject_of(tmp_path, name, text, 3)


def test_a_plan_for_several_replicas_is_written_into_another_config(tmp_path: Path) -> None:
    now, then = Recipe(micro_batch_size=4, world_size=2), Recipe(micro_batch_size=16, world_size=2)
    (tmp_path / "x.yaml").write_text(YACS)
    (tmp_path / "y.yaml").write_text(ITSELF)
    assert "IMS_PER_BATCH: 32" in plan(now, then).patch(tmp_path / "x.yaml")
    assert "BASE_LR: 0.04" in plan(now, then).patch(tmp_path / "x.yaml")
    other = plan(now, Recipe(micro_batch_size=32, world_size=2)).patch(tmp_path / "y.yaml")
    assert "+per_device_train_batch_size: 32" in other
    assert "+learning_rate: 0.04" in other


def test_a_plan_for_several_replicas_is_set_on_a_mapping() -> None:
    made = plan(Recipe(micro_batch_size=4, world_size=2), Recipe(micro_batch_size=16, world_size=2))
    arguments = {"batch": 16, "imgsz": 640, "lr0": 0.01, "nbs": 64}
    assert made.apply(dict(arguments), format_name="ultralytics")["batch"] == 32
    assert made.apply(SimpleNamespace(batch_size=4)).batch_size == 16


def test_a_commands_config_is_for_the_replicas_that_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(ITSELF)
    command = CommandOptions(template="t {config} {micro_batch_size}", config_path=tmp_path / "x.yaml")
    subject, _ = subject_of_command(command, read_config(tmp_path / "x.yaml"), PlanRequest(world_size=2))
    assert subject.current.global_batch_size == 32
    assert subject.unwritable is None


def test_for_one_replica_a_config_is_as_it_was_read(tmp_path: Path) -> None:
    config = config_of(tmp_path, YACS)
    assert for_replicas(config, 1) is config


@pytest.mark.parametrize(("name", "text", "key"), [
    ("x.yaml", YACS, "SOLVER.IMS_PER_BATCH"), ("x.py", LAZY, "dataloader.train.total_batch_size")
])  # fmt: skip
def test_the_number_of_replicas_is_asked_for_only_where_nobody_said_it(
    tmp_path: Path, name: str, text: str, key: str
) -> None:
    config = config_of(tmp_path, text, name=name)
    note = f"{key} is the batch of all cards: give --world-size where there are several"
    assert note in for_replicas(config, None).notes
    assert not any("world-size" in each for each in for_replicas(config, 2).notes)


BASE_BATCH = "auto_scale_lr = dict(enable={}, base_batch_size=16)\n"
MMDET = """\
data = dict(samples_per_gpu=2)
optimizer = dict(type='SGD', lr=0.02)
runner = dict(type='IterBasedRunner', max_iters=90000)
"""


@pytest.mark.parametrize(
    ("name", "text", "cards"),
    [
        ("net_8xb2_coco", MMDET, 8),
        ("net_8x2_coco", MMDET, 8),
        ("net_8xb4_coco", MMDET, None),
        ("net", MMDET, None),
        ("net", MMDET + BASE_BATCH.format(False), 8),
        ("net_4xb2", MMDET + BASE_BATCH.format(False), 8),
        ("net_8xb2", MMDET + BASE_BATCH.format(True), None),
        ("net_8xb2", MMDET + BASE_BATCH.format(False).replace("16", "15"), None),
    ],
)
def test_what_a_learning_rate_is_for(tmp_path: Path, name: str, text: str, cards: int | None) -> None:
    assert reference_world_size(config_of(tmp_path, text, name=f"{name}.py")) == cards


def named_for_eight(folder: Path, name: str, world_size: int | None) -> Subject:
    found = read_config(folder / f"{name}.py", workload_target="a:b")
    return subject_of_config(found, world_size=world_size)


@pytest.mark.parametrize(
    ("world_size", "rate", "length"),
    [(None, 0.16, 11250), (8, 0.16, 11250), (2, 0.04, 45000), (1, 0.02, 90000)],
)
def test_rate_and_schedule_start_from_the_cards_a_config_is_for(
    tmp_path: Path, world_size: int | None, rate: float, length: int
) -> None:
    (tmp_path / "net_8xb2.py").write_text(MMDET)
    subject, request = named_for_eight(tmp_path, "net_8xb2", world_size), PlanRequest(world_size=world_size)
    recipe = scale(replace(subject.current, micro_batch_size=16), subject, request, "SGD").recipe
    patch = write_patch(recipe, subject, request, why="seen")
    assert patch is not None
    assert recipe.learning_rate == rate
    assert {each.key: each.value for each in patch.changes}.get("runner.max_iters", 90000) == length
    apply_patch(patch)
    again = named_for_eight(tmp_path, "net_8xb2_memplan", world_size)
    assert again.current == recipe
    assert scale(again.current, again, request, "SGD").recipe == recipe


@pytest.mark.parametrize(("text", "said"), [
    (MMDET, "the file is named for 8 cards"), (MMDET + BASE_BATCH.format(False), "auto_scale_lr.base_batch_size is 16")
])  # fmt: skip
def test_what_rate_and_schedule_start_from_is_said(tmp_path: Path, text: str, said: str) -> None:
    config = config_of(tmp_path, text, name="net_8xb2.py")
    note = f"{said}: rate and schedule are taken to be for 8 x 2 samples, not for 2 x 2"
    assert note in for_replicas(config, 2).notes
    assert for_replicas(config, 8).notes == config.notes


def test_the_rate_of_a_runner_that_scales_it_itself_is_that_of_all_replicas(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, "net.py", MMDET + BASE_BATCH.format(True), 8)
    assert subject.current == Recipe(micro_batch_size=2, learning_rate=0.02, world_size=8)  # 8 x 2 is the base batch
    wider = Recipe(micro_batch_size=4, world_size=8)
    assert scale(wider, subject, PlanRequest(), "SGD").recipe.learning_rate == 0.04
    once = patched(subject, wider, tmp_path, "net_memplan.py")
    assert once.config is not None
    assert get(once.config.values, "optimizer.lr") == 0.02
    assert once.current == replace(wider, learning_rate=0.04)
    on_two = subject_of_config(read_config(tmp_path / "net_memplan.py", workload_target="a:b"), world_size=2)
    assert on_two.current == Recipe(micro_batch_size=4, learning_rate=0.01, world_size=2)
    assert scale(on_two.current, on_two, PlanRequest(), "SGD").recipe == on_two.current


def test_a_rate_that_the_commands_flag_scales_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(MMDET + BASE_BATCH.format(False))
    template = "tools/train.py {config} --auto-scale-lr --cfg-options data.samples_per_gpu={micro_batch_size}"
    command = CommandOptions(template=template, config_path=path)
    subject, request = subject_of_command(command, read_config(path), PlanRequest())
    recipe = scale(replace(subject.current, micro_batch_size=16), subject, request, "SGD").recipe

    def write(wanted: Recipe) -> ConfigPatch | None:
        return write_patch(wanted, subject, request, why="seen")

    planned = write(recipe)
    assert planned is not None
    patch, remark = with_proven_rate(planned, recipe, subject, write, device=CPU)
    assert patch is not None
    assert [each.key for each in patch.changes] == ["data.samples_per_gpu", "runner.max_iters"]
    assert remark == "the command's --auto-scale-lr scales the learning rate, so the config's is left alone"
