"""The original of a config that cannot hold comments is kept beside it, as long as it is about that config."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from memplan.configs import RecipeChange, UserConfig, apply_patch, plan_patch, read_config, undo_patch
from memplan.errors import ConfigError, PatchError
from memplan.recipe import Recipe
from tests.making import config_of

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.patches import ConfigPatch

pytestmark = pytest.mark.usefixtures("memplans_reader_alone")

TEXT = '{\n  "per_device_train_batch_size": 4,\n  "learning_rate": 0.0002,\n  "output_dir": "out"\n}\n'


def patched(folder: Path, text: str = TEXT) -> ConfigPatch:
    (folder / "x.json").write_text(text)
    change = RecipeChange(recipe=Recipe(micro_batch_size=12, learning_rate=6e-4), options={"max_util": 0.8})
    patch = plan_patch(read_config(folder / "x.json"), change)
    apply_patch(patch)
    return patch


def reread(folder: Path, **values: object) -> UserConfig:
    """Read the patched file again, with some values changed by hand."""
    found = json.loads((folder / "x.json").read_text())
    return config_of(folder, json.dumps({**found, **values}), name="x.json")


def test_the_sidecar_is_a_second_file_of_the_patch(tmp_path: Path) -> None:
    patch = patched(tmp_path)
    assert [each.path for each in patch.files] == [str(tmp_path / "x.json"), str(tmp_path / "x.json.memplan")]
    assert "+++ b/x.json.memplan" in patch.diff
    undo_patch(patch)
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]


def test_a_second_run_starts_from_the_original(tmp_path: Path) -> None:
    patched(tmp_path)
    original = read_config(tmp_path / "x.json").original
    assert original is not None
    assert original.recipe == Recipe(micro_batch_size=4, learning_rate=2e-4)
    assert original.options == {"max_util": 0.8}


def test_what_was_kept_of_the_original_counts_while_other_values_change(tmp_path: Path) -> None:
    patched(tmp_path)
    assert reread(tmp_path, output_dir="elsewhere").original is not None


@pytest.mark.parametrize("values", [{"per_device_train_batch_size": 4}, {"learning_rate": 1e-3}])
def test_what_was_kept_of_the_original_counts_no_more_once_one_of_its_values_has_changed(
    values: dict[str, float], tmp_path: Path
) -> None:
    patched(tmp_path)
    config = reread(tmp_path, **values)
    assert config.original is None
    assert "x.json.memplan is about another state of this file" in config.notes[-1]


def test_a_later_patch_keeps_the_first_original(tmp_path: Path) -> None:
    patched(tmp_path)
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=4e-4))
    apply_patch(plan_patch(read_config(tmp_path / "x.json"), change))
    again = read_config(tmp_path / "x.json")
    assert again.recipe.micro_batch_size == 8
    assert again.original is not None
    assert again.original.recipe.micro_batch_size == 4


def test_a_damaged_sidecar_is_named_with_its_line(tmp_path: Path) -> None:
    patched(tmp_path)
    sidecar = tmp_path / "x.json.memplan"
    sidecar.write_text(sidecar.read_text().replace('"version": 1, ', '"version: 1, '))
    with pytest.raises(ConfigError, match=r"x.json.memplan:2: the memplan comment cannot be read"):
        read_config(tmp_path / "x.json")


def test_somebody_elses_file_of_that_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(TEXT)
    (tmp_path / "x.json.memplan").write_text("mine\n")
    with pytest.raises(PatchError, match=r"x.json.memplan: .* not of memplan's making"):
        plan_patch(read_config(tmp_path / "x.json"), RecipeChange(recipe=Recipe(micro_batch_size=8)))


def test_lengths_that_were_declared_when_memplan_changed_them_are_missed(tmp_path: Path) -> None:
    text = "train:\n  batch_size: 4\n  max_steps: 100\n  warmup_steps: 7\n"
    declared = {"micro_batch_size": "train.batch_size", "optimizer_steps": "train.max_steps"}
    change = RecipeChange(recipe=Recipe(micro_batch_size=8), optimizer_step_factor=Fraction(1, 2))
    apply_patch(plan_patch(config_of(tmp_path, text, name="x.yaml", knob_keys=declared), change))
    said = "memplan changed train.max_steps (from 100 to 50) before, and leaves it so now: name it by --map again"
    assert said not in read_config(tmp_path / "x.yaml", knob_keys=declared).notes
    assert said in read_config(tmp_path / "x.yaml").notes
