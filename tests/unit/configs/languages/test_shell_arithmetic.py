"""Numbers that launch scripts compute, and defaults that the environment may overrule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan.configs import RecipeChange, apply_patch, plan_patch, read_config
from memplan.configs.languages.shell_arithmetic import computed_number
from memplan.configs.languages.shell_words import Word
from memplan.configs.languages.spans import Span
from memplan.errors import ConfigError
from memplan.recipe import Recipe
from tests.making import config_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("memplans_reader_alone")

HEAD = """\
GPUS=${GPUS:-8}
BATCH_SIZE=${BATCH_SIZE:-128}  # of an optimizer step
PER_DEVICE=${PER_DEVICE:-4}
STEPS=$((BATCH_SIZE / PER_DEVICE / GPUS))
"""
COMMAND = """\
torchrun train.py --output_dir out --per_device_train_batch_size ${PER_DEVICE} \\
  --gradient_accumulation_steps ${STEPS} --learning_rate 2e-5 --bf16 True
"""
CURRENT = Recipe(micro_batch_size=4, accumulation_steps=4, precision="bf16", learning_rate=2e-5)


def patched(folder: Path, recipe: Recipe) -> str:
    config = config_of(folder, HEAD + COMMAND, name="x.sh")
    assert config.recipe == CURRENT
    apply_patch(plan_patch(config, RecipeChange(recipe=recipe)))
    assert read_config(folder / "x.sh").recipe == recipe
    return (folder / "x.sh").read_text(encoding="utf-8").partition("# memplan:")[0]


def test_a_number_takes_the_place_of_what_is_computed_from_the_batch(tmp_path: Path) -> None:
    recipe = Recipe(micro_batch_size=8, accumulation_steps=4, precision="bf16", learning_rate=4e-5)
    expected = (
        (HEAD + COMMAND)
        .replace("PER_DEVICE:-4", "PER_DEVICE:-8")
        .replace("${STEPS} --learning_rate 2", "4 --learning_rate 4")
    )
    assert patched(tmp_path, recipe) == expected


def test_what_is_computed_stays_where_the_batch_does(tmp_path: Path) -> None:
    recipe = Recipe(micro_batch_size=4, accumulation_steps=4, precision="bf16", learning_rate=4e-5)
    assert patched(tmp_path, recipe) == (HEAD + COMMAND).replace("2e-5", "4e-5")


def test_where_nothing_changes_nothing_is_written(tmp_path: Path) -> None:
    assert plan_patch(config_of(tmp_path, HEAD + COMMAND, name="x.sh"), RecipeChange(recipe=CURRENT)).diff == ""


OPEN = HEAD.replace("GPUS=${GPUS:-8}\n", "") + COMMAND


def test_what_is_computed_from_an_environment_that_is_silent_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUS", raising=False)
    with pytest.raises(ConfigError, match=r"='\$\{STEPS\}' is worked out from what .* not say") as caught:
        config_of(tmp_path, OPEN, name="x.sh")
    assert caught.value.hint == "set GPUS in the environment as for the training"


def test_the_environment_says_what_the_script_takes_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUS", "2")
    config = config_of(tmp_path, OPEN, name="x.sh")
    assert config.recipe.accumulation_steps == 128 // 4 // 2
    assert "taken from the environment: GPUS=2" in config.notes


def test_the_environment_wins_over_a_default_as_it_does_in_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PER_DEVICE", "2")
    config = config_of(tmp_path, HEAD + COMMAND, name="x.sh")
    assert (config.recipe.micro_batch_size, config.recipe.accumulation_steps) == (2, 128 // 2 // 8)
    recipe = Recipe(micro_batch_size=4, accumulation_steps=4, precision="bf16", learning_rate=2e-5)
    apply_patch(plan_patch(config, RecipeChange(recipe=recipe)))
    assert read_config(tmp_path / "x.sh").recipe == recipe  # the flag itself says it now, in any environment
    assert "--per_device_train_batch_size 4 " in (tmp_path / "x.sh").read_text(encoding="utf-8")


def test_a_sum_may_stand_in_the_command(tmp_path: Path) -> None:
    text = (HEAD + COMMAND).replace("${STEPS}", "$((BATCH_SIZE / (PER_DEVICE * GPUS)))")
    assert config_of(tmp_path, text, name="x.sh").recipe == CURRENT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("N=$((7 / 2))", 3),
        ("N=$((-7 / 2))", None),  # signs are left to the shell
        ("N=$((1 - 3 * 2))", -5),
        ("A=6\nN=$(( ($A + 2) * ${A} / 4 ))", 12),
        ("A=6\nN=$(( A - ${B:-2} ))", None),  # so are defaults
        ("export A=${B:-6}\nexport N=$((A/4))", 1),
        ("A=6\nA=7\nN=$((A/4))", None),
        ("N=$((4 / 0))", None),
        ("N=$((4 ** 4))", None),
        ("N=$((99999999999999999999 / 2))", None),
        ("N=$((2))\nN=$((3))", None),
        ("N=4", None),
        ("N=$((4", None),
        ("N=$((" + "(" * 500 + "4))", None),
        ("N=$((__import__('os')))", None),
    ],
)
def test_the_four_rules_and_no_more(text: str, expected: int | None) -> None:
    assert computed_number(text, Word(span=Span(start=len(text), end=len(text)), text='"${N}"')) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("N=${N:-4}", 4), ('N="${N:-4}"', 4), ("M=4\nN=$M", 4), ("N=${1:-4}", 4), ("M=$N\nN=$M", "$N"), ("N=$N", "$N")],
)
def test_names_are_followed_to_their_literals(tmp_path: Path, text: str, expected: object) -> None:
    config = config_of(tmp_path, f"{text}\npython train.py --batch_size 2 --seed $N\n", name="x.sh")
    assert config.values["seed"] == expected
