"""mmengine's pure-Python style: what such a config evaluates to, and changes to it in the same style."""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from memplan.configs import PatchStyle, RecipeChange, apply_patch, plan_patch, read_config
from memplan.configs.evaluation.pure_python import PurePythonReading
from memplan.configs.keys import differences
from memplan.configs.languages.python_style import PythonStyle, style_of
from memplan.errors import ConfigError
from memplan.recipe import Precision, Recipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

NEEDS_MMENGINE = pytest.mark.skipif(importlib.util.find_spec("mmengine") is None, reason="mmengine is not installed")
BASE = """\
from mmengine.optim import LinearLR, OptimWrapper, PolyLR
from torch.optim import AdamW
import torch.nn as nn

pipeline = [dict(type='Crop', size=(512, 512))]
model = dict(norm=dict(type=nn.BatchNorm2d), head=dict(classes=19, bias=True))
train_dataloader = dict(batch_size=4, num_workers=2, dataset=dict(pipeline=pipeline))
optim_wrapper = dict(type=OptimWrapper, optimizer=dict(type=AdamW, lr=6e-5), clip_grad=dict(max_norm=35))
param_scheduler = [
    dict(type=LinearLR, start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type=PolyLR, eta_min=1e-6, begin=1500, end=16000, by_epoch=False),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=16000, val_interval=1600)
"""
LEAF = """\
from mmengine.config import read_base

with read_base():
    from .base import *

train_dataloader.update(batch_size=8)  # bs 4 in the base
model.head.classes = 21
"""


def tree(folder: Path, leaf: str = LEAF, base: str = BASE, name: str = "leaf.py") -> Path:
    (folder / "base.py").write_text(base, encoding="utf-8")
    (folder / name).write_text(leaf, encoding="utf-8")
    return folder / name


def values_of(path: Path) -> dict[str, Any]:
    return PurePythonReading({}).evaluate(path)


def doubled(path: Path, **recipe: Any) -> RecipeChange:
    current = read_config(path).recipe
    rate = None if current.learning_rate is None else current.learning_rate * 2
    wanted = Recipe(micro_batch_size=current.micro_batch_size * 2, learning_rate=rate, **recipe)
    return RecipeChange(recipe=wanted, iteration_factor=Fraction(1, 2))


def test_the_style_is_told_by_the_syntax_alone() -> None:
    assert style_of(LEAF) is PythonStyle.PURE_PYTHON
    assert style_of(BASE) is PythonStyle.PURE_PYTHON
    assert style_of("import os\nmodel = dict(type='Net')\n") is PythonStyle.BASE_LIST
    assert style_of("_base_ = './base.py'\nfrom x import Y\nmodel = dict(type=Y)\n") is PythonStyle.BASE_LIST
    assert style_of("import numpy as np\nsize = float(np.sqrt(4))\n") is PythonStyle.BASE_LIST
    assert style_of("not python at all\n") is PythonStyle.BASE_LIST


def test_bases_are_updated_and_what_is_imported_is_only_named(tmp_path: Path) -> None:
    values = values_of(tree(tmp_path))
    assert values["train_dataloader"]["batch_size"] == 8
    assert values["train_dataloader"]["num_workers"] == 2
    assert values["model"] == {"norm": {"type": "torch.nn.BatchNorm2d"}, "head": {"classes": 21, "bias": True}}
    assert values["optim_wrapper"]["type"] == "mmengine.optim.OptimWrapper"
    assert "AdamW" not in values
    assert "read_base" not in values


def test_a_base_shares_nothing_between_its_names(tmp_path: Path) -> None:
    values = values_of(tree(tmp_path, LEAF + "pipeline[0].update(size=(2, 2))\n"))
    assert values["pipeline"][0]["size"] == (2, 2)
    assert values["train_dataloader"]["dataset"]["pipeline"][0]["size"] == (512, 512)


def test_update_keeps_and_merge_may_delete(tmp_path: Path) -> None:
    lines = (
        "optim_wrapper.update(clip_grad=dict(norm_type=2))\nmodel.merge(dict(head=dict(_delete_=True, classes=3)))\n"
    )
    values = values_of(tree(tmp_path, LEAF + lines))
    assert values["optim_wrapper"]["clip_grad"] == {"max_norm": 35, "norm_type": 2}
    assert values["model"]["head"] == {"classes": 3}
    assert "norm" in values["model"]


@pytest.mark.parametrize(
    ("leaf", "place", "part"),
    [
        ("_base_ = './base.py'\n" + LEAF, "leaf.py:1", "must not be mixed"),
        (LEAF.replace(".base import *", ".gone import *"), "leaf.py:4", "there is no config"),
        (LEAF.replace("import *", "import nothing"), "leaf.py:4", "base.py sets no 'nothing'"),
        (LEAF.replace(".base", ".leaf"), "leaf.py:4", "inherits from itself"),
        (LEAF.replace("from .base", "from nowhere_at_all.base"), "leaf.py:4", "'nowhere_at_all'"),
        (LEAF.replace("from .base import *", "import base"), "leaf.py:4", "only from"),
    ],
)
def test_a_bad_base_is_one_clear_line(tmp_path: Path, leaf: str, place: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        values_of(tree(tmp_path, leaf))
    assert caught.value.where == f"{tmp_path}/{place}"
    assert part in caught.value.problem


def test_a_call_of_what_is_only_named_is_the_configs_error(tmp_path: Path) -> None:
    path = tree(tmp_path, LEAF + "from numpy import sqrt\nmodel.update(width=sqrt(4))\n")
    with pytest.raises(ConfigError, match=r"numpy\.sqrt is called"):
        read_config(path)


def test_the_child_updates_what_it_imports(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    path = tree(tmp_path)
    patch = plan_patch(read_config(path), doubled(path, precision=Precision.FP16))
    golden("patches/pure_python_child.diff", patch.diff)
    apply_patch(patch)
    values = values_of(tmp_path / "leaf_memplan.py")
    assert values["optim_wrapper"]["type"] == "mmengine.optim.AmpOptimWrapper"
    assert [each["end"] for each in values["param_scheduler"]] == [750, 8000]


def test_leaving_autocast_takes_its_settings_out(tmp_path: Path) -> None:
    amp = BASE.replace("dict(type=OptimWrapper", "dict(type=AmpOptimWrapper, loss_scale=512.0")
    path = tree(tmp_path, base=amp.replace("import LinearLR", "import AmpOptimWrapper, LinearLR"))
    apply_patch(plan_patch(read_config(path), doubled(path)))
    text = (tmp_path / "leaf_memplan.py").read_text(encoding="utf-8")
    assert "optim_wrapper.pop('loss_scale')" in text
    assert read_config(tmp_path / "leaf_memplan.py").recipe == doubled(path).recipe


def test_a_config_that_cannot_be_imported_is_changed_at_its_end(tmp_path: Path) -> None:
    path = tree(tmp_path, name="leaf-b4_8xb8.py")
    patch = plan_patch(read_config(path), doubled(path, precision=Precision.BF16))
    assert [each.path for each in patch.files] == [str(path)]
    assert "\n+train_dataloader.update(batch_size=16)  # bs 4 in the base\n" in patch.diff
    assert "\n+optim_wrapper['optimizer']['lr'] = 0.00012  # was 6e-5" in patch.diff
    apply_patch(patch)
    assert read_config(path).recipe.precision is Precision.BF16


def test_in_place_starts_from_what_was_added_before(tmp_path: Path) -> None:
    path = tree(tmp_path)
    apply_patch(plan_patch(read_config(path), doubled(path), style=PatchStyle.IN_PLACE))
    again = read_config(path)
    back = RecipeChange(recipe=again.original.recipe if again.original else again.recipe)
    apply_patch(plan_patch(again, back, style=PatchStyle.IN_PLACE))
    text = path.read_text(encoding="utf-8")
    assert text.count("optim_wrapper['optimizer']['lr'] = 6e-5") == 1
    assert "0.00012" not in text.partition("# memplan:")[0]


@NEEDS_MMENGINE
def test_mmengine_reads_the_same_values(tmp_path: Path) -> None:
    path = tree(tmp_path, LEAF + "model.merge(dict(head=dict(_delete_=True, classes=3)))\nfrom os import sep\n")
    config_class = pytest.importorskip("mmengine.config").Config
    assert not [*differences(config_class.fromfile(str(path)).to_dict(), values_of(path))]
