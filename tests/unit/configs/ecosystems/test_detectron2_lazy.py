"""detectron2's LazyConfig: what such a config evaluates to without detectron2, and changes to it in the same style."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from memplan.configs import PatchStyle, RecipeChange, apply_patch, expressible, plan_patch, read_config
from memplan.configs.evaluation.lazy_config import LazyConfigReading
from memplan.errors import ConfigError
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from memplan.configs import UserConfig

COMMON = """\
import torch
from functools import partial
from omegaconf import OmegaConf
import detectron2.data.transforms as T
from detectron2.config import LazyCall as L
from detectron2.layers import ShapeSpec
from detectron2.modeling import RPN

SGD = L(torch.optim.SGD)(params=L(T.params)(base_lr="${..lr}"), lr=0.02)
train = dict(max_iter=90000, amp=dict(enabled=False), checkpointer=dict(period=5000), eval_period=5000)
dataloader = OmegaConf.create()
dataloader.train = L(T.build)(total_batch_size=16, sizes=(640, 800))
model = L(RPN)(shape=ShapeSpec(channels=256), act=partial(T.relu, slope=0.1), f=lambda c: c)
_private = dict(a=1)


class Net(torch.nn.Module):
    pass
"""
LEAF = """\
from .common.all import SGD as optimizer
from .common.all import dataloader, model, train

image_size = 1024
dataloader.train.total_batch_size = 64  # 8 cards
train.max_iter //= 2
model.head = dict(dims=[256, 256])
model.head.dims[0] = 128
"""


def tree(folder: Path, leaf: str = LEAF, name: str = "leaf.py") -> Path:
    (folder / "common").mkdir(exist_ok=True)
    (folder / "common" / "all.py").write_text(COMMON, encoding="utf-8")
    (folder / name).write_text(leaf, encoding="utf-8")
    return folder / name


def doubled(config: UserConfig) -> RecipeChange:
    recipe = config.recipe
    rate = None if recipe.learning_rate is None else recipe.learning_rate * 2
    wanted = replace(recipe, micro_batch_size=recipe.micro_batch_size * 2, precision=Precision.FP16, learning_rate=rate)
    return RecipeChange(recipe=wanted, iteration_factor=Fraction(1, 2))


def test_imported_configs_are_changed_and_calls_are_described(tmp_path: Path) -> None:
    values = LazyConfigReading({}).evaluate(tree(tmp_path))
    assert list(values) == ["optimizer", "dataloader", "model", "train"]
    assert values["optimizer"] == {
        "params": {"base_lr": "${..lr}", "_target_": "detectron2.data.transforms.params"},
        "lr": 0.02,
        "_target_": "torch.optim.SGD",
    }
    assert values["train"]["max_iter"] == 45000
    assert values["dataloader"]["train"] == {
        "total_batch_size": 64,
        "sizes": [640, 800],
        "_target_": "detectron2.data.transforms.build",
    }
    assert values["model"] == {
        "shape": "detectron2.layers.ShapeSpec(channels=256)",
        "act": "functools.partial(detectron2.data.transforms.relu, slope=0.1)",
        "f": "<lambda>",
        "_target_": "detectron2.modeling.RPN",
        "head": {"dims": [128, 256]},
    }


def test_each_import_has_values_of_its_own(tmp_path: Path) -> None:
    leaf = "from .common.all import train\nfrom .common.all import train as other\ntrain.max_iter = 1\n"
    values = LazyConfigReading({}).evaluate(tree(tmp_path, leaf))
    assert (values["train"]["max_iter"], values["other"]["max_iter"]) == (1, 90000)


def test_the_model_zoo_is_the_checkout_around_the_config(tmp_path: Path) -> None:
    (tmp_path / "configs" / "common").mkdir(parents=True)
    (tmp_path / "configs" / "common" / "train.py").write_text("train = dict(max_iter=7)\n", encoding="utf-8")
    leaf = "from detectron2 import model_zoo\ntrain = model_zoo.get_config('common/train.py').train\n"
    path = tmp_path / "projects" / "leaf.py"
    path.parent.mkdir()
    path.write_text(leaf, encoding="utf-8")
    assert LazyConfigReading({}).evaluate(path) == {"train": {"max_iter": 7}}
    path.write_text(leaf.replace("train.py", "gone.py"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"common/gone\.py was not found above this one"):
        LazyConfigReading({}).evaluate(path)


@pytest.mark.parametrize(
    ("leaf", "part"),
    [
        ("from .gone import train\n", "there is no config"),
        ("from .common.all import nothing\n", "all.py sets no 'nothing'"),
        ("from . import common\n", "there is no config"),
        ("from .leaf import train\n", "leaf.py imports itself"),
        ("from .common.all import train\ntrain.length.max = 3\n", "sets no 'length' here"),
    ],
)
def test_a_bad_import_is_one_clear_line(tmp_path: Path, leaf: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        read_config(tree(tmp_path, leaf))


def test_every_knob_is_found_through_the_imports_that_rename(tmp_path: Path) -> None:
    config = read_config(tree(tmp_path))
    assert config.format_name == "detectron2-lazy"
    assert {each.key: each.value for each in config.knobs} == {
        "dataloader.train.total_batch_size": 64,
        "optimizer.lr": 0.02,
        "train.amp.enabled": False,
        "train.max_iter": 45000,
        "train.eval_period": 5000,
        "train.checkpointer.period": 5000,
    }
    assert config.notes == ()


def test_the_child_imports_the_config_and_changes_it(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    config = read_config(tree(tmp_path))
    patch = plan_patch(config, doubled(config))
    golden("patches/detectron2_lazy_child.diff", patch.diff)
    apply_patch(patch)
    assert read_config(tmp_path / "leaf_memplan.py").recipe == doubled(config).recipe
    assert "optimizer.lr=0.04" in str(patch.override_line)


def test_in_place_splices_what_is_written_and_adds_the_rest(tmp_path: Path) -> None:
    config = read_config(tree(tmp_path))
    patch = plan_patch(config, doubled(config), style=PatchStyle.IN_PLACE)
    assert "\n+dataloader.train.total_batch_size = 128  # 8 cards\n" in patch.diff
    assert "\n+optimizer.lr = 0.04  # was 0.02" in patch.diff


def test_in_place_leaves_what_is_worked_out_from_a_value(tmp_path: Path) -> None:
    leaf = LEAF + "train.max_iter = 100\nmodel.updates = train.max_iter\n"
    config = read_config(tree(tmp_path, leaf))
    apply_patch(plan_patch(config, doubled(config), style=PatchStyle.IN_PLACE))
    values: dict[str, Any] = read_config(config.path).values
    assert (values["train"]["max_iter"], values["model"]["updates"]) == (50, 100)


def test_what_detectron2_cannot_do_is_said(tmp_path: Path) -> None:
    config = read_config(tree(tmp_path))
    assert "does not accumulate" in str(expressible(config, replace(config.recipe, accumulation_steps=2)))
    assert "train.amp.enabled has no way to say bf16" in str(
        expressible(config, replace(config.recipe, precision=Precision.BF16))
    )
