"""What every config ecosystem promises: read, patch, apply, reload, and nothing but the intended values differ."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from memplan.configs import (
    KnobName,
    PatchStyle,
    RecipeChange,
    apply_patch,
    expressible,
    plan_patch,
    read_config,
    undo_patch,
)
from memplan.configs.ecosystems.registry import ecosystem_named
from memplan.configs.keys import differences, get, lookup, with_value
from memplan.errors import ConfigError, PatchError
from memplan.recipe import Precision
from tests.contract.config_cases import (
    BY_LINE,
    CASES,
    EVERY_CASE,
    EVERY_LAYOUT,
    Case,
    applied,
    for_cases,
    own_changes,
    read,
    wider,
)
from tests.refusals import contents

if TYPE_CHECKING:
    from collections.abc import Callable

READ_ALONE = pytest.mark.usefixtures("memplans_reader_alone")


@EVERY_CASE
def test_the_ecosystem_is_recognised_and_its_recipe_read(case: Case, tmp_path: Path) -> None:
    config = read(case, case.write(tmp_path))
    assert config.format_name == case.format_name
    assert config.recipe.accumulation_steps == 1
    assert config.recipe.precision is Precision.FP32
    assert config.recipe.learning_rate == case.rate
    assert config.original is None


@EVERY_CASE
def test_planning_a_patch_changes_nothing_on_disk(case: Case, tmp_path: Path) -> None:
    config = read(case, case.write(tmp_path))
    before = contents(tmp_path)
    patch = plan_patch(config, wider(config), style=case.style)  # read back by the ecosystem's own packages, too
    assert contents(tmp_path) == before
    assert patch.verified_by


@READ_ALONE
@EVERY_CASE
def test_exactly_the_intended_values_differ_after_a_reload(case: Case, tmp_path: Path) -> None:
    config, patch = applied(case, tmp_path)
    reloaded = read(case, Path(patch.files[0].path))
    assert reloaded.recipe == wider(config).recipe
    expected = config.values
    for each in own_changes(patch):
        expected = with_value(expected, each.key, lookup(reloaded.values, each.key))
    assert not [*differences(expected, reloaded.values)]
    assert all(get(config.values, each.key) != each.value for each in own_changes(patch))


@READ_ALONE
@for_cases(each for each in CASES if each.length_key is not None)
def test_lengths_follow_the_batch_and_stay_whole(case: Case, tmp_path: Path) -> None:
    _, patch = applied(case, tmp_path)
    changed = {each.key: (each.before, each.after) for each in patch.changes}
    assert changed[case.length_key] == ("16000", "2667" if case.length_key.endswith("steps") else "5333")


@READ_ALONE
@EVERY_CASE
def test_a_second_reading_knows_the_original(case: Case, tmp_path: Path) -> None:
    config, patch = applied(case, tmp_path)
    reloaded = read(case, Path(patch.files[0].path))
    assert reloaded.original is not None
    assert reloaded.original.recipe == config.recipe
    assert case.length_key is None or reloaded.original.values[case.length_key] == 16000


@READ_ALONE
@EVERY_CASE
def test_the_same_change_again_is_nothing(case: Case, tmp_path: Path) -> None:
    _, patch = applied(case, tmp_path)
    reloaded = read(case, Path(patch.files[0].path))
    again = plan_patch(reloaded, wider(reloaded), style=case.style)
    assert (again.diff, again.changes) == ("", ())


@READ_ALONE
@EVERY_CASE
def test_another_change_starts_from_the_original(case: Case, tmp_path: Path) -> None:
    config, patch = applied(case, tmp_path)
    reloaded = read(case, Path(patch.files[0].path))
    change = RecipeChange(recipe=config.recipe, iteration_factor=Fraction(1))
    apply_patch(plan_patch(reloaded, change, style=case.style))
    back = read(case, Path(patch.files[0].path))
    assert back.recipe == config.recipe
    assert back.original is not None
    assert reloaded.original is not None
    assert back.original.recipe == reloaded.original.recipe
    assert {**back.original.values, **reloaded.original.values} == back.original.values
    for each in own_changes(patch):
        if each.before != "not set":
            assert lookup(back.values, each.key) == lookup(config.values, each.key), each.key


@READ_ALONE
@EVERY_CASE
def test_the_loader_changes_where_that_is_asked_for_and_only_then(case: Case, tmp_path: Path) -> None:
    wanted = {KnobName.LOADER_WORKERS: 3, KnobName.PIN_MEMORY: True, KnobName.PERSISTENT_WORKERS: True}
    config = read(case, case.write(tmp_path))
    loader_key = ecosystem_named(config.format_name).loader_key
    keys = {key: value for name, value in wanted.items() if (key := loader_key(config, name))}
    assert not set(keys) & {each.key for each in plan_patch(config, wider(config), style=case.style).changes}
    change = replace(wider(config), loader=wanted)
    patch = plan_patch(config, change, style=case.style)
    assert {each.key: each.value for each in patch.changes if each.key in keys} == keys
    apply_patch(patch)
    reloaded = read(case, Path(patch.files[0].path))
    assert {each.key: each.value for each in reloaded.knobs if each.name in wanted} == keys
    assert plan_patch(reloaded, replace(wider(reloaded), loader=wanted), style=case.style).changes == ()
    apply_patch(plan_patch(reloaded, RecipeChange(recipe=config.recipe), style=case.style))
    back = read(case, Path(patch.files[0].path))
    assert back.recipe == config.recipe
    assert {each.key: each.value for each in back.knobs if each.name in wanted} == keys


@READ_ALONE
@EVERY_LAYOUT
@pytest.mark.parametrize("newline", BY_LINE, ids=["lf", "crlf"])
@pytest.mark.parametrize("tool", ["git", "patch"])
def test_the_diff_is_taken_by_git_and_by_patch(case: Case, tool: str, newline: str, tmp_path: Path) -> None:
    case = replace(case, newline=newline)
    command = {
        "git": ["git", "apply", "--whitespace=nowarn", "change.diff"],
        "patch": ["patch", "-p1", "-i", "change.diff"],
    }
    if shutil.which(tool) is None:
        pytest.skip(f"there is no {tool} on this machine")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)  # noqa: S607
    folder = tmp_path / "configs" / "a folder"
    folder.mkdir(parents=True)
    config = read(case, case.write(folder))
    patch = plan_patch(config, wider(config), style=case.style)
    assert patch.root_path == str(tmp_path)
    (tmp_path / "change.diff").write_bytes(patch.diff.encode())
    subprocess.run(command[tool], cwd=tmp_path, check=True, capture_output=True)
    assert {each.path: Path(each.path).read_bytes() for each in patch.files} == {
        each.path: each.patched_text.encode() for each in patch.files
    }


@READ_ALONE
@EVERY_LAYOUT
def test_undoing_a_patch_restores_every_byte(case: Case, tmp_path: Path) -> None:
    config = read(case, case.write(tmp_path))
    before = contents(tmp_path)
    patch = plan_patch(config, wider(config), style=case.style)
    with pytest.raises(PatchError, match="the patch is not applied"):
        undo_patch(patch)
    apply_patch(patch)
    assert contents(tmp_path) != before
    with pytest.raises(PatchError, match="applied already"):
        apply_patch(patch)
    undo_patch(patch)
    assert contents(tmp_path) == before


@READ_ALONE
@EVERY_LAYOUT
def test_a_file_that_changed_since_it_was_patched_is_not_undone(case: Case, tmp_path: Path) -> None:
    _, patch = applied(case, tmp_path)
    target = Path(patch.files[-1].path)
    target.write_bytes(target.read_bytes() + b"\n")
    before = contents(tmp_path)
    with pytest.raises(PatchError, match="was changed since the patch was applied"):
        undo_patch(patch)
    assert contents(tmp_path) == before


@READ_ALONE
@EVERY_CASE
@pytest.mark.parametrize("newline", BY_LINE, ids=["lf", "crlf"])
def test_line_endings_are_kept(case: Case, newline: str, tmp_path: Path) -> None:
    case = replace(case, newline=newline)
    _, patch = applied(case, tmp_path)
    content = Path(patch.files[0].path).read_bytes()
    assert content.count(b"\r\n") == (content.count(b"\n") if case.newline == "\r\n" else 0)
    if case.style is PatchStyle.IN_PLACE:
        assert content.endswith(b"\n") is case.final_newline


@READ_ALONE
@EVERY_LAYOUT
def test_a_file_that_changed_since_is_left_alone(case: Case, tmp_path: Path) -> None:
    config = read(case, case.write(tmp_path))
    patch = plan_patch(config, wider(config), style=case.style)
    target = Path(patch.files[0].path)
    target.write_bytes(b"# somebody else's\n" + (target.read_bytes() if target.exists() else b""))
    before = contents(tmp_path)
    with pytest.raises(PatchError, match="since the patch was planned"):
        apply_patch(patch)
    assert contents(tmp_path) == before


@EVERY_CASE
def test_what_cannot_be_expressed_is_said_beforehand_and_refused(case: Case, tmp_path: Path) -> None:
    config = read(case, case.write(tmp_path))
    recipe = replace(config.recipe, world_size=2)
    assert expressible(config, config.recipe) is None
    assert "launcher" in str(expressible(config, recipe))
    with pytest.raises(PatchError, match="launcher"):
        plan_patch(config, RecipeChange(recipe=recipe), style=case.style)


@EVERY_CASE
def test_a_mistyped_knob_is_named_with_what_is_near(case: Case, tmp_path: Path) -> None:
    path = case.write(tmp_path)
    knob = next(each for each in read(case, path).knobs if each.name in ("learning_rate", "micro_batch_size"))
    with pytest.raises(ConfigError, match=rf"there is no key '{knob.key}s'.*did you mean .*{knob.key}"):
        read_config(path, knob_keys={**case.knob_keys, knob.name: f"{knob.key}s"})
    with pytest.raises(ConfigError, match=r"no knob 'learning_rte'.*did you mean learning_rate"):
        read_config(path, knob_keys={"learning_rte": "optimizer.lr"})


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("hydra experiment", "hydra_experiment"),
        ("lightning cli", "lightning_cli_overlay"),
        ("detectron2", "detectron2_child"),
        ("json crlf", "plain_json_crlf"),
        ("deepspeed", "deepspeed_json"),
        ("toml", "plain_toml"),
    ],
)
def test_the_whole_diff(name: str, stem: str, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    case = next(each for each in CASES if each.name == name)
    _, patch = applied(case, tmp_path)
    golden(f"patches/{stem}.diff", patch.diff)
