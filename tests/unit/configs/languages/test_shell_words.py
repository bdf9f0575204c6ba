"""Commands put together from variables, and what is no word of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan.configs import RecipeChange, apply_patch, plan_patch, read_config
from memplan.configs.languages.shell_variables import MAX_WORDS, expanded
from memplan.configs.languages.shell_words import commands_in
from memplan.recipe import Recipe
from tests.making import config_of, patched_text

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("memplans_reader_alone")

ASSEMBLED = """\
BATCH=4
LAUNCH="torchrun --nproc_per_node 2"
model_args="\\
    --output_dir out \\
"
training_args="\\
    --per_device_train_batch_size $BATCH \\
    --learning_rate 1e-4 \\
"
cmd="$LAUNCH \\
    -m package.train \\
    $model_args $training_args"
echo $cmd
eval $cmd 2>&1 | tee log
"""


def test_flags_are_changed_where_a_variable_holds_them(tmp_path: Path) -> None:
    config = config_of(tmp_path, ASSEMBLED, name="x.sh")
    assert config.values == {"output_dir": "out", "per_device_train_batch_size": 4, "learning_rate": 1e-4}
    recipe = Recipe(micro_batch_size=8, precision="bf16", learning_rate=2e-4)
    apply_patch(plan_patch(config, RecipeChange(recipe=recipe)))
    text = (tmp_path / "x.sh").read_text(encoding="utf-8").partition("# memplan:")[0]
    expected = ASSEMBLED.replace("BATCH=4", "BATCH=8").replace("1e-4 \\\n", "2e-4 \\\n    --bf16 \\\n")
    assert text == expected
    assert read_config(tmp_path / "x.sh").recipe == recipe


@pytest.mark.parametrize("command", ['eval "$cmd"', "$cmd", "${cmd}"])
def test_a_whole_command_may_lie_in_a_variable(tmp_path: Path, command: str) -> None:
    text = f'cmd="python train.py --batch_size 4 --lr 0.1"\n{command}\n'
    assert config_of(tmp_path, text, name="x.sh").values == {"batch_size": 4, "lr": 0.1}


def test_a_quoted_variable_is_one_word(tmp_path: Path) -> None:
    text = 'NOTE="--lr 7"\npython train.py --batch_size 4 --note "$NOTE"\n'
    assert config_of(tmp_path, text, name="x.sh").values == {"batch_size": 4, "note": "--lr 7"}


def test_a_redirection_is_no_value_of_the_last_flag(tmp_path: Path) -> None:
    text = "python train.py --output_dir out --per_device_train_batch_size 4 2>&1 | tee log\n"
    (tmp_path / "x.sh").write_text(text, encoding="utf-8")
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, precision="bf16", learning_rate=5e-5))
    apply_patch(plan_patch(read_config(tmp_path / "x.sh"), change))
    expected = "python train.py --output_dir out --per_device_train_batch_size 8 --bf16 2>&1 | tee log\n"
    assert (tmp_path / "x.sh").read_text(encoding="utf-8").startswith(expected)


@pytest.mark.parametrize(
    "other", ["python3 -m pip install x --no-deps", "python eval.py --batch_size 9", "python -m evaluate --lr 1"]
)
def test_of_several_commands_the_one_that_trains_is_taken(tmp_path: Path, other: str) -> None:
    train = "python train.py --output_dir out --per_device_train_batch_size 4"
    assert config_of(tmp_path, f"{other}\n{train}\n{other}\n", name="x.sh").recipe.micro_batch_size == 4


def test_names_that_lead_to_each_other_end() -> None:
    text = 'A="1 $B 2"\nB="3 $A 4"\nrun $A\n'
    assert [each.text for each in expanded(text, commands_in(text)[-1])] == ["run", "1", "3", "$A", "4", "2"]


def test_what_grows_without_end_is_left_as_it_is() -> None:
    names = [f"N{index}" for index in range(40)]
    lines = [
        f'{name}="{" ".join(f"${other}" for other in names[index + 1 :])} x y"' for index, name in enumerate(names)
    ]
    text = "\n".join([*lines, "run $N0", ""])
    assert len(expanded(text, commands_in(text)[-1])) <= MAX_WORDS + 1


def test_a_variable_that_another_flag_uses_too_is_left_to_it(tmp_path: Path) -> None:
    text = "BATCH=4\npython train.py --batch_size $BATCH --lr 0.1 --eval_batch_size $BATCH --name '$BATCH'\n"
    found = patched_text(config_of(tmp_path, text, name="x.sh"), Recipe(micro_batch_size=8, learning_rate=0.1))
    assert found.startswith(text.replace("--batch_size $BATCH", "--batch_size 8", 1))


@pytest.mark.parametrize("value", ['"4"', "'4'"])
def test_quotes_around_a_value_are_kept(tmp_path: Path, value: str) -> None:
    text = f"python train.py --batch_size={value} --lr 0.1\n"
    found = patched_text(config_of(tmp_path, text, name="x.sh"), Recipe(micro_batch_size=8, learning_rate=0.1))
    assert found.startswith(text.replace("4", "8"))


@pytest.mark.parametrize(
    ("words", "others"),
    [
        ("--batch_size 4 -v --lr 0.1", {"v": True}),
        ("--batch_size 4 -j 8 --lr 0.1 data", {"j": 8}),
        ("--lr 0.1 --batch_size 4 data/imagenet", {}),
        ("--lr 0.1 --betas 0.9 0.99 --batch_size=4 data", {"betas": [0.9, 0.99]}),
        ("--momentum -0.5 --lr 0.1 --batch_size 4 -a resnet50 data", {"momentum": -0.5, "a": ["resnet50", "data"]}),
    ],
)
def test_a_number_ends_before_short_flags_and_places(tmp_path: Path, words: str, others: dict[str, object]) -> None:
    config = config_of(tmp_path, f"python -m package.train {words}\n", name="x.sh")
    assert config.values == {"batch_size": 4, "lr": 0.1, **others}
    changed = patched_text(config, Recipe(micro_batch_size=8, learning_rate=0.1))
    assert changed.startswith(f"python -m package.train {words.replace('size 4', 'size 8').replace('=4', '=8')}\n")
