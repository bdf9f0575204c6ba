"""Arguments of training scripts: flags of launch scripts, defaults of argparse."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import pytest

from memplan.configs import KnobName, PatchStyle, RecipeChange, apply_patch, expressible, plan_patch, read_config
from memplan.configs.languages.shell_source import load_shell
from memplan.configs.languages.shell_words import commands_in
from memplan.errors import ConfigError, PatchError
from memplan.recipe import Precision, Recipe
from tests import making
from tests.making import patched_text

if TYPE_CHECKING:
    from pathlib import Path


MAE = "python main_pretrain.py --batch_size 64 \\\n    --model mae --blr 1.5e-4 --min_lr 1e-6\n"
DECLARED = """\
import argparse
from pathlib import Path
Path("ran").touch()
p = argparse.ArgumentParser()
p.add_argument("-b", "--batch-size", dest="bs", type=int, default=64)
p.add_argument("--train-batch-size", type=int, default=4)
p.add_argument("--lr", type=float, default=2e-4)
p.add_argument("--grad-checkpointing", action="store_true")
p.add_argument("--workers", default=Path("x").stat, type=int)
"""


config_of = partial(making.config_of, name="x.sh")


@pytest.mark.parametrize(
    ("default", "obstacle"),
    [("", "it has no default"), (", default=None", "it has no default"), (", default=f()", "its default is computed")],
)
def test_a_rate_without_a_known_default_is_named_as_such_and_is_no_knob(
    tmp_path: Path, default: str, obstacle: str
) -> None:
    text = DECLARED.replace("float, default=2e-4", f"float{default}")
    config = config_of(tmp_path, text, name="x.py")
    assert f"--lr is not known, as {obstacle}: no learning rate is written" in config.notes
    assert config.recipe.learning_rate is None
    with pytest.raises(ConfigError, match=f"lr cannot be learning_rate: {obstacle}; give it a value there"):
        read_config(config.path, knob_keys={"learning_rate": "lr"})


def test_words_are_taken_apart_as_a_shell_does() -> None:
    text = "A=1 b 'c d' \"e # f\" g#h # comment\n  i \\\n  j | k && l;m $(n o) ${p:-q r}"
    found = [[word.plain for word in command] for command in commands_in(text)]
    assert found == [["A=1", "b", "c d", "e # f", "g#h"], ["i", "j"], ["k"], ["l"], ["m", "$(n o)", "${p:-q r}"]]


@pytest.mark.parametrize(
    ("command", "values"),
    [
        (
            "python train.py --lr 1e-3 --wd=-0.1 --amp --sizes 1 2",
            {"lr": 1e-3, "wd": -0.1, "amp": True, "sizes": [1, 2]},
        ),
        ("torchrun --nproc_per_node 8 a/train.py --batch-size 4", {"batch_size": 4}),
        ("python -m torch.distributed.launch --nproc 2 t.py --bf16 True", {"bf16": True}),
        ("CUDA_VISIBLE_DEVICES=0 python -m pkg.train --lr 'x y'", {"lr": "x y"}),
        (
            "python t.py --a $(date $(x)) --b $(( (N + 1) * 2 )) --c `date +%F` --n 4",
            {"a": "$(date $(x))", "b": "$(( (N + 1) * 2 ))", "c": "`date +%F`", "n": 4},
        ),
        ('N=4\npython t.py --n $N --m ${M:-3} --k "$K"', {"n": 4, "m": 3, "k": "$K"}),
    ],
)
def test_flags_are_those_of_the_training_program(command: str, values: dict[str, object]) -> None:
    assert load_shell(command, where="x") == values


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("echo nothing\n", "no training command"),
        ("python a.py --lr 1\npython b.py --lr 2\n", r"several training commands \(lines 1, 2\)"),
    ],
)
def test_a_script_must_train_one_thing(text: str, part: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=part):
        config_of(tmp_path, text)


@pytest.mark.parametrize("program", ["eval.py", "tools/test.py", "-m pkg.validate", "inference.py"])
def test_what_evaluates_beside_the_training_is_left_out(program: str, tmp_path: Path) -> None:
    text = f"python train.py --batch_size 8\npython {program} --batch_size 64\n"
    assert config_of(tmp_path, text).recipe.micro_batch_size == 8
    alone = config_of(tmp_path, f"python {program} --batch_size 64\n")
    assert alone.recipe.micro_batch_size == 64


def test_a_rate_that_the_script_computes_is_left_alone(tmp_path: Path) -> None:
    config = config_of(tmp_path, MAE)
    assert config.format_name == "launch-script"
    assert config.recipe == Recipe(micro_batch_size=64)
    assert "scales blr with the global batch itself" in config.notes[1]
    text = patched_text(config, Recipe(micro_batch_size=16, accumulation_steps=4))
    assert text.startswith(MAE.replace("64", "16").replace("--min_lr 1e-6", "--min_lr 1e-6 --accum_iter 4"))


def test_a_rate_that_is_given_is_scaled_with_its_floor(tmp_path: Path) -> None:
    config = config_of(tmp_path, MAE.replace("--blr", "--lr"))
    text = patched_text(config, Recipe(micro_batch_size=128, learning_rate=3e-4))
    assert "--batch_size 128 \\\n    --model mae --lr 3e-4 --min_lr 2e-6\n" in text


def test_a_new_flag_follows_the_way_they_are_written(tmp_path: Path) -> None:
    text = "python r.py \\\n  --per_device_train_batch_size 4 \\\n  --learning_rate 1e-3 \\\n  --output_dir out\n"
    config = config_of(tmp_path, text)
    recipe = Recipe(micro_batch_size=4, learning_rate=1e-3, precision="bf16")
    assert patched_text(config, recipe).startswith(f"{text[:-1]} \\\n  --bf16\n# memplan")


def test_a_switch_is_turned_off_only_where_a_value_can_do_it(tmp_path: Path) -> None:
    config = config_of(tmp_path, "python t.py --batch_size 4 --amp\n")
    assert "is a switch" in str(expressible(config, Recipe(micro_batch_size=4)))
    for text in (
        "t.py --batch_size 4 --gradient_checkpointing",
        "train.py --model m --opt o --batch-size 4 --grad-checkpointing",
    ):
        config = config_of(tmp_path, f"python {text} --lr 0.1\n")
        assert config.recipe.activation_checkpointing
        obstacle = expressible(config, replace(config.recipe, activation_checkpointing=False))
        assert str(obstacle) == f"{text.rpartition(' ')[2]} is a switch, which a value cannot turn off"
    config = config_of(tmp_path, "python t.py --batch_size 4 --gradient_checkpointing true --lr 0.1\n")
    unset = replace(config.recipe, activation_checkpointing=False)
    assert "--gradient_checkpointing false --lr" in patched_text(config, unset)
    assert config_of(tmp_path, "python t.py --batch_size 4 --bf16\n").recipe.precision is Precision.BF16
    arguments = "python t.py --per_device_train_batch_size 4 --output_dir o --fp16\n"
    recipe = Recipe(micro_batch_size=4, learning_rate=5e-5)
    assert "--fp16 False\n" in patched_text(config_of(tmp_path, arguments), recipe)


def test_a_value_that_the_script_computes_is_not_edited(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"batch_size='\$\(cat batch\)' is worked out"):
        config_of(tmp_path, "python t.py --batch_size $(cat batch)\n")
    config = config_of(tmp_path, "R=1e-3\nR=2e-3\npython t.py --batch_size 4 --lr 1e-3 --accum_iter 1 --min_lr $R\n")
    assert [each.key for each in config.knobs] == ["batch_size", "accum_iter", "lr"]


def test_a_script_with_arguments_is_read_without_being_run(tmp_path: Path) -> None:
    config = config_of(tmp_path, DECLARED, name="train.py")
    assert not (tmp_path / "ran").exists()
    assert config.format_name == "argparse-script"
    assert config.values == {"bs": 64, "train_batch_size": 4, "lr": 2e-4, "grad_checkpointing": False}
    assert config.recipe == Recipe(micro_batch_size=4, learning_rate=2e-4)


def test_its_change_is_flags_and_no_file(tmp_path: Path) -> None:
    config = config_of(tmp_path, DECLARED, name="train.py")
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=4e-4, activation_checkpointing=True))
    patch = plan_patch(config, change)
    assert (patch.files, patch.diff) == ((), "")
    assert patch.override_line == "--train-batch-size 8 --lr 0.0004 --grad-checkpointing"
    with pytest.raises(PatchError, match=r"changes no file; add to the training command: --train-batch-size 8"):
        apply_patch(patch)


def test_its_defaults_are_edited_on_request(tmp_path: Path) -> None:
    config = config_of(tmp_path, DECLARED, name="train.py")
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=4e-4))
    text = patched_text(config, change, style=PatchStyle.IN_PLACE)
    expected = DECLARED.replace("default=4)", "default=8)").replace("default=2e-4", "default=4e-4")
    assert text.startswith(f"{expected}# memplan: ")


CHOOSING = """\
import argparse
p = argparse.ArgumentParser()
p.add_argument("--batch-size", type=int, default=64)
p.add_argument("--precision", choices=["amp", "amp_bf16", "fp16", "fp32"], default="amp_bf16")
"""


@pytest.mark.parametrize(("precision", "word"), [("fp32", "fp32"), ("fp16", "amp"), ("bf16-true", None)])
def test_a_precision_is_written_as_one_of_the_choices(tmp_path: Path, precision: str, word: str | None) -> None:
    config = config_of(tmp_path, CHOOSING, name="train.py")
    assert config.recipe.precision is Precision.BF16
    recipe = Recipe(micro_batch_size=64, precision=precision)
    if word is None:
        assert expressible(config, recipe) == (
            "precision='amp_bf16' has no way to say bf16-true (a second key for the type can be declared with "
            "--map amp_dtype=KEY)"
        )
    else:
        assert plan_patch(config, RecipeChange(recipe=recipe)).override_line == f"--precision {word}"


def test_a_precision_in_unknown_words_is_named(tmp_path: Path) -> None:
    config = config_of(tmp_path, CHOOSING.replace('default="amp_bf16"', 'default="int4"'), name="train.py")
    assert config.recipe.precision is Precision.FP32
    assert any(each.startswith("--precision=int4 is no precision that memplan knows") for each in config.notes)


def test_a_switch_has_no_default_to_edit(tmp_path: Path) -> None:
    config = config_of(tmp_path, DECLARED, name="train.py")
    change = RecipeChange(recipe=Recipe(micro_batch_size=4, learning_rate=2e-4, activation_checkpointing=True))
    with pytest.raises(PatchError, match="it has no default"):
        plan_patch(config, change, style=PatchStyle.IN_PLACE)


DIFFUSERS = (
    "accelerate launch train_dreambooth.py --train_batch_size 2 --gradient_accumulation_steps 1 \\\n"
    "  --learning_rate 1e-4 --max_train_steps $STEPS --lr_warmup_steps 100 --checkpointing_steps epoch\n"
)


def test_lengths_in_optimizer_steps_follow_the_global_batch(tmp_path: Path) -> None:
    config = config_of(tmp_path, f"STEPS=1000\n{DIFFUSERS}")
    assert "--max_train_steps, --lr_warmup_steps are taken to count optimizer steps" in config.notes
    change = RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=4e-4), optimizer_step_factor=Fraction(1, 4))
    text = patched_text(config, change)
    wanted = f"STEPS=250\n{DIFFUSERS}".replace("size 2", "size 8").replace("1e-4", "4e-4").replace("100", "25")
    assert text.startswith(wanted)


def test_lengths_stay_where_the_global_batch_is_held(tmp_path: Path) -> None:
    config = config_of(tmp_path, f"STEPS=1000\n{DIFFUSERS}")
    change = RecipeChange(recipe=Recipe(micro_batch_size=1, accumulation_steps=2), iteration_factor=Fraction(2))
    text = patched_text(config, change)
    assert text.startswith(f"STEPS=1000\n{DIFFUSERS}".replace("size 2", "size 1").replace("steps 1 ", "steps 2 "))


def test_a_length_that_memplan_does_not_scale_is_named(tmp_path: Path) -> None:
    command = "python t.py --batch-size 4 --lr 0.1 --max-steps $((EPOCHS * 100)) --train-iters 500\n"
    notes = config_of(tmp_path, command).notes
    assert "--max-steps is worked out by the script, and left alone" in notes
    assert any(each.startswith("--train-iters is left alone, as programs differ") for each in notes)


def test_what_the_user_maps_is_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text("python t.py --batch-size 4 --eta 0.1 --train-iters 500\n")
    mapped = {"learning_rate": "eta", "iterations": "train_iters"}
    assert len(read_config(tmp_path / "x.sh").notes) == 3
    assert read_config(tmp_path / "x.sh", knob_keys=mapped).notes == (
        "--batch-size is taken as the batch of one device",
    )


def test_a_job_script_is_for_as_many_replicas_as_srun_starts(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --ntasks-per-node=4\nsrun -N 2 python train.py --batch-size 32\n"
    assert config_of(tmp_path, text, name="job.sbatch").replicas == 8


PARSER = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch-size', type=int, default=4)\n"


def test_a_default_that_is_set_later_counts(tmp_path: Path) -> None:
    config = config_of(tmp_path, f"{PARSER}p.set_defaults(batch_size=8, main=print)\n", name="x.py")
    assert config.recipe.micro_batch_size == 8
    change = RecipeChange(recipe=Recipe(micro_batch_size=16))
    text = patched_text(config, change, style=PatchStyle.IN_PLACE)
    assert text.startswith(f"{PARSER}p.set_defaults(batch_size=16, main=print)\n")


@pytest.mark.parametrize("default", ["default=None, ", ""])
def test_a_precision_without_a_default_is_off_where_no_is_a_choice(tmp_path: Path, default: str) -> None:
    declared = f"p.add_argument('--mixed_precision', {default}choices=['no', 'fp16', 'bf16'])\n"
    config = config_of(tmp_path, f"{PARSER}{declared}", name="x.py")
    assert config.recipe.precision is Precision.FP32
    change = RecipeChange(recipe=Recipe(micro_batch_size=4, precision="bf16"))
    assert plan_patch(config, change).override_line == "--mixed_precision bf16"


def test_an_argument_with_several_defaults_is_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no micro-batch size"):
        config_of(tmp_path, f"{PARSER}q.add_argument('--batch-size', default=64)\n", name="x.py")


def test_an_argument_declared_twice_alike_is_changed_on_the_command_line_alone(tmp_path: Path) -> None:
    config = config_of(tmp_path, f"{PARSER}q.add_argument('--batch-size', default=4)\n", name="x.py")
    change = RecipeChange(recipe=Recipe(micro_batch_size=8))
    assert plan_patch(config, change).override_line == "--batch-size 8"
    with pytest.raises(PatchError, match="declared more than once"):
        plan_patch(config, change, style=PatchStyle.IN_PLACE)


def test_a_script_whose_batch_is_no_argument_is_told_to_take_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="have the script take it as an argument, such as --batch-size"):
        config_of(
            tmp_path,
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', default=1.0)\n",
            name="train.py",
        )


def test_a_short_name_of_the_batch_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--map micro_batch_size=KEY, such as b$"):
        config_of(tmp_path, "p.add_argument('-b', type=int, default=8, help='batch size')\n", name="train.py")


def test_names_in_camel_case_are_the_usual_ones(tmp_path: Path) -> None:
    text = "".join(
        f"p.add_argument('--{each}', default={number})\n" for each, number in (("batchSize", 8), ("LR", 0.1))
    )
    config = config_of(tmp_path, text, name="train.py")
    assert config.recipe == Recipe(micro_batch_size=8, learning_rate=0.1)
    change = RecipeChange(recipe=replace(config.recipe, micro_batch_size=16))
    assert plan_patch(config, change).override_line == "--batchSize 16"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.sh", "python train.py --batch-size 4 --max-steps 100 --warmup-iters 10\n"),
        (
            "x.py",
            "import argparse\np = argparse.ArgumentParser()\n"
            + "".join(
                f"p.add_argument('--{flag}', type=int, default={number})\n"
                for flag, number in (("batch-size", 4), ("max-steps", 100), ("warmup-iters", 10))
            ),
        ),
    ],
)
def test_flags_are_named_as_they_are_written(tmp_path: Path, name: str, text: str) -> None:
    notes = config_of(tmp_path, text, name=name).notes
    assert "--batch-size is taken as the batch of one device" in notes
    assert "--max-steps is taken to count optimizer steps" in notes
    assert any(each.startswith("--warmup-iters is left alone") and "iterations=warmup_iters" in each for each in notes)


def test_a_declared_length_joins_those_that_are_known(tmp_path: Path) -> None:
    text = "python train.py --batch_size 4 --max_steps 100 --eval_steps 20 --warmup_iters 10\n"
    declared = {"optimizer_steps": "warmup_iters", "iterations": "eval_steps"}
    config = config_of(tmp_path, text, knob_keys=declared)
    change = RecipeChange(
        recipe=Recipe(micro_batch_size=8), optimizer_step_factor=Fraction(1, 2), iteration_factor=Fraction(1, 4)
    )
    text = patched_text(config, change)
    assert text.startswith("python train.py --batch_size 8 --max_steps 50 --eval_steps 5 --warmup_iters 5\n")


WITHOUT_TRAINER = (
    "accelerate launch run_clm_no_trainer.py --per_device_train_batch_size 4 --gradient_accumulation_steps 2 "
    "--learning_rate 1e-4 --num_warmup_steps 100 --max_train_steps 2000 --output_dir out\n"
)


def test_a_script_without_a_trainer_takes_no_training_arguments(tmp_path: Path) -> None:
    config = config_of(tmp_path, WITHOUT_TRAINER)
    assert config.format_name == "launch-script"
    change = RecipeChange(
        recipe=Recipe(micro_batch_size=8, accumulation_steps=2, learning_rate=1e-4),
        optimizer_step_factor=Fraction(1, 2),
    )
    text = patched_text(config, change)
    assert "--per_device_train_batch_size 8 " in text
    assert "--num_warmup_steps 50 --max_train_steps 1000 " in text
    assert expressible(config, Recipe(micro_batch_size=4, precision="bf16")) is not None  # it need not take --bf16


def test_the_settings_of_deepspeed_may_be_named_with_a_launch_script(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text(WITHOUT_TRAINER)
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}}\n')
    (companion,) = read_config(tmp_path / "x.sh", tmp_path / "ds.json").companions
    assert companion.path == tmp_path / "ds.json"


def test_a_global_batch_follows_the_micro_batch_by_the_scripts_own_flags(tmp_path: Path) -> None:
    config = config_of(tmp_path, "python p.py --micro-batch-size 4 --global-batch-size 16 --lr 1e-3 --min-lr 1e-5\n")
    assert config.recipe.accumulation_steps == 4
    patch = plan_patch(config, RecipeChange(recipe=replace(config.recipe, micro_batch_size=8, learning_rate=2e-3)))
    wanted = "--micro-batch-size 8 --global-batch-size 32 --lr 0.002 --min-lr 2e-05"
    assert patch.override_line == wanted


def test_a_learning_rate_of_a_part_of_the_model_is_named(tmp_path: Path) -> None:
    notes = config_of(tmp_path, "python main.py --batch_size 2 --lr 1e-4 --lr_backbone 1e-5 --lr_drop 200\n").notes
    said = "--lr_backbone is left alone where --lr changes: --map learning_rate=lr,lr_backbone has it follow"
    assert [each for each in notes if "lr_" in each] == [said]


def test_a_flag_that_may_be_accumulation_is_named_as_it_is_written(tmp_path: Path) -> None:
    config = config_of(tmp_path, "python main.py --batch-size 2 --lr 1e-4 --update-freq 4\n")
    hint = "--map accumulation_steps=update_freq says that it does"
    assert f"--update-freq=4 is not taken as accumulation, which it may mean: {hint}" in config.notes


def test_a_switch_is_no_count_of_accumulated_steps(tmp_path: Path) -> None:
    assert config_of(tmp_path, "python main.py --batch_size 2 --gradient_accumulation\n").recipe.accumulation_steps == 1


@pytest.mark.parametrize(
    ("declared", "line"),
    [
        ('"--amp", action=argparse.BooleanOptionalAction, default=True', "--no-amp"),
        ('"--amp", action=BooleanOptionalAction, default=True', "--no-amp"),
        ('"--no-amp", dest="amp", action="store_false"', "--no-amp"),
        ('"--amp", type=truth, default=True', "--amp False"),
    ],
)
def test_a_switch_that_is_on_by_default_is_turned_off_as_the_script_declares(
    tmp_path: Path, declared: str, line: str
) -> None:
    config = config_of(tmp_path, f"{DECLARED}p.add_argument({declared})\n", name="x.py")
    assert config.recipe.precision is Precision.FP16
    patch = plan_patch(config, RecipeChange(recipe=replace(config.recipe, precision=Precision.FP32)))
    assert patch.override_line == line
    with pytest.raises(PatchError) as refusal:
        apply_patch(patch)
    assert refusal.value.hint == f"add to the training command: {line}"


SWITCHES = """
p.add_argument("--amp", action="store_true")
p.add_argument("--fp16", action="store_true")
p.add_argument("--bf16", action="store_true")
"""


@pytest.mark.parametrize(
    ("said", "key", "precision"),
    [
        ("", "amp", Precision.FP32),
        ("--bf16", "bf16", Precision.BF16),
        ("--fp16", "fp16", Precision.FP16),
        ("--bf16 --amp", "amp", Precision.FP16),
    ],
)
def test_of_several_switches_of_precision_the_one_that_is_on_counts(
    tmp_path: Path, said: str, key: str, precision: Precision
) -> None:
    path = tmp_path / "x.py"
    path.write_text(DECLARED + SWITCHES)
    config = read_config(path, command_line=f"python {path} {said}")
    assert [each.key for each in config.knobs if each.name is KnobName.PRECISION] == [key]
    assert config.recipe.precision is precision


@pytest.mark.parametrize("declared", ['"--amp", action="store_true", default=True', '"--amp", type=bool, default=True'])
def test_a_switch_that_nothing_turns_off_keeps_the_precision(tmp_path: Path, declared: str) -> None:
    config = config_of(tmp_path, f"{DECLARED}p.add_argument({declared})\n", name="x.py")
    with pytest.raises(PatchError, match="--amp is on by default, and no flag turns it off"):
        plan_patch(config, RecipeChange(recipe=replace(config.recipe, precision=Precision.FP32)))


@pytest.mark.parametrize(
    ("declared", "line"),
    [('"--amp", action="store_true"', "--amp"), ('"--amp", type=truth, default=False', "--amp True")],
)
def test_a_switch_is_turned_on_as_the_script_declares(tmp_path: Path, declared: str, line: str) -> None:
    config = config_of(tmp_path, f"{DECLARED}p.add_argument({declared})\n", name="x.py")
    change = RecipeChange(recipe=replace(config.recipe, precision=Precision.FP16))
    assert plan_patch(config, change).override_line == line
