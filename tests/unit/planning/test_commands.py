"""What a training command starts from, and what it can be asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from memplan.configs import PatchStyle, apply_patch, read_config
from memplan.errors import ConfigError, UsageError
from memplan.planner import Planning
from memplan.planning.command_notes import command_notes, notes_on_line_to_run, reason_to_stay
from memplan.planning.commands import CommandOptions, command_options, config_beside, subject_of_command
from memplan.planning.fingerprints import fingerprint_of
from memplan.planning.line_to_run import command_to_run
from memplan.planning.present import is_settled
from memplan.planning.question import question_of
from memplan.planning.writing.patching import write_patch
from memplan.plans import PlanRequest
from memplan.recipe import Precision, Recipe
from memplan.results import OutcomeKind
from tests.making import config_of, ignore, question, trial

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.results import Trial

PLAIN = "python train.py --bs {micro_batch_size}"


def subject_of(template: str, request: PlanRequest | None = None, **options):
    return subject_of_command(CommandOptions(template=template, **options), None, request or PlanRequest())


def timed(micro_batch_size: int, allocated: int, step_s: float) -> Trial:
    found = trial(micro_batch_size, allocated)
    measured = replace(found.outcome.measurement, peak_allocated_bytes=allocated, step_times_s=(step_s,) * 3)
    return replace(found, outcome=replace(found.outcome, measurement=measured))


def test_without_a_config_the_first_trial_is_small() -> None:
    subject, _ = subject_of(PLAIN)
    assert subject.current == Recipe(micro_batch_size=4)
    assert subject.label == "train.py"


def test_the_first_micro_batch_is_the_users_where_given() -> None:
    assert subject_of(PLAIN, micro_batch_size=32)[0].current.micro_batch_size == 32


def test_a_config_gives_the_first_recipe(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text('{"per_device_train_batch_size": 6, "gradient_accumulation_steps": 2, "learning_rate": 0.001}')
    config = read_config(path)
    command = CommandOptions(template="t {config} {micro_batch_size} {learning_rate}", config_path=path)
    subject, _ = subject_of_command(command, config, PlanRequest())
    assert subject.current == Recipe(micro_batch_size=6, accumulation_steps=2, learning_rate=0.001)
    assert command_to_run(subject, subject.current) == f"t {path} 6 0.001"


def test_a_precision_that_only_the_command_can_say_is_compared_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "p.add_argument('--bs', dest='batch_size', default=4)\np.add_argument('--amp', action='store_true')\n"
    )
    config, template = read_config(path), "t --bs {micro_batch_size}"
    bf16 = Recipe(micro_batch_size=9, precision="bf16")
    silent, request = subject_of_command(CommandOptions(template=template), config, PlanRequest())
    assert "no {precision}" in str(silent.obstacle(bf16))
    worded = CommandOptions(template=f"{template} {{precision:fp32=,bf16=--amp}}")
    subject, request = subject_of_command(worded, config, PlanRequest())
    assert subject.obstacle(bf16) is None
    assert subject.as_written(bf16) == Recipe(micro_batch_size=9)
    patch = write_patch(bf16, subject, request, why="it fits")
    assert patch is not None
    assert patch.override_line == "--bs 9"


def test_flags_of_a_change_are_in_the_line_to_run_or_named(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    declared = ("--batch_size", 4), ("--max_train_steps", 20), ("--num_warmup_steps", 4), ("--lr", 0.5)
    path.write_text("".join(f"p.add_argument('{flag}', default={value})\n" for flag, value in declared))
    template, recipe = "t --batch_size {micro_batch_size} --max_train_steps={steps}", Recipe(8, learning_rate=0.25)
    subject, request = subject_of_command(CommandOptions(template=template), read_config(path), PlanRequest())
    patch = write_patch(recipe, subject, request, why="it fits")
    assert command_to_run(subject, recipe, patch) == (
        "t --batch_size 8 --max_train_steps={steps} --lr 0.25 --num_warmup_steps 2"
    )
    assert notes_on_line_to_run(subject, recipe, patch) == ()
    (noted,) = notes_on_line_to_run(subject, recipe, None)
    assert noted == "the line to run leaves the learning rate as it is: set 0.25 there"
    piped = f"LR={{learning_rate}} {template} | tee log"
    told, _ = subject_of_command(CommandOptions(template=piped), read_config(path), request)
    assert command_to_run(told, recipe, patch) == "LR=0.25 t --batch_size 8 --max_train_steps={steps} | tee log"
    said = "the line to run leaves out --num_warmup_steps 2, which belongs to the change"
    assert notes_on_line_to_run(told, recipe, patch) == (said,)


def test_what_the_command_says_of_a_scripts_arguments_is_where_the_plan_starts_and_changes_in_its_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.py"
    declared = ("'--batch_size'", 4), ("'--lr', '--learning-rate'", 0.5), ("'-j', '--workers'", 4)
    path.write_text("".join(f"p.add_argument({flags}, default={value})\n" for flags, value in declared))
    command = CommandOptions(template="t -j0 --learning-rate 0.001 --batch_size {micro_batch_size}")
    config, _ = config_beside(command, [path], format_name=None, knob_keys=None, workload=None)
    assert config is not None
    assert config.notes[-1] == "taken from the command: workers=0, lr=0.001"
    subject, request = subject_of_command(command, config, PlanRequest())
    assert subject.current == Recipe(micro_batch_size=4, learning_rate=0.001)
    recipe = Recipe(micro_batch_size=8, learning_rate=0.002)
    patch = write_patch(recipe, subject, request, why="it fits")
    assert patch is not None
    assert [(each.key, each.before, each.after) for each in patch.changes] == [
        ("batch_size", "4", "8"),
        ("lr", "0.001", "0.002"),
    ]
    assert command_to_run(subject, recipe, patch) == "t -j0 --learning-rate 0.002 --batch_size 8"
    assert notes_on_line_to_run(subject, recipe, patch) == ()


def said_to_train(tmp_path: Path, line: str, request: PlanRequest | None = None):
    """Return the subject of a command and a script whose rate has no default, and which has a switch for bfloat16."""
    path = tmp_path / "train.py"
    path.write_text(
        "p.add_argument('--batch_size', type=int, default=4)\n"
        "p.add_argument('--lr', type=float, required=True)\n"
        "p.add_argument('--max_train_steps', type=int)\n"
        "p.add_argument('--bf16', action='store_true')\n"
    )
    command = CommandOptions(template=line)
    config, _ = config_beside(command, [path], format_name=None, knob_keys=None, workload=None)
    assert config is not None
    return subject_of_command(command, config, request or PlanRequest())


def test_arguments_without_a_default_are_those_that_the_command_says(tmp_path: Path) -> None:
    line = "python train.py --batch_size {micro_batch_size} --lr 0.001 --max_train_steps 500"
    subject, request = said_to_train(tmp_path, line)
    assert subject.current == Recipe(micro_batch_size=4, learning_rate=0.001)
    recipe = Recipe(micro_batch_size=8, learning_rate=0.002)
    patch = write_patch(recipe, subject, request, why="it fits")
    changed = "python train.py --batch_size 8 --lr 0.002 --max_train_steps 250"
    assert command_to_run(subject, recipe, patch) == changed


def test_what_the_shell_makes_of_an_argument_is_not_known_and_left_alone(tmp_path: Path) -> None:
    subject, request = said_to_train(tmp_path, "python train.py --batch_size {micro_batch_size} --lr $LR")
    assert subject.current.learning_rate is None
    assert subject.config.notes[-1] == "what the command says of lr is not known, and left alone"
    patch = write_patch(Recipe(micro_batch_size=8), subject, request, why="it fits")
    assert command_to_run(subject, Recipe(micro_batch_size=8), patch) == "python train.py --batch_size 8 --lr $LR"


def test_another_precision_than_the_command_says_needs_a_placeholder(tmp_path: Path) -> None:
    line = "python train.py --batch_size {micro_batch_size} --lr 0.1 --bf16"
    assert said_to_train(tmp_path, line)[0].current.precision is Precision.BF16
    assert said_to_train(tmp_path, line, PlanRequest(precisions=(Precision.BF16,)))[0].current.precision == "bf16"
    with pytest.raises(UsageError, match=r"precision fp32 cannot be tried: the command itself says bf16; write"):
        said_to_train(tmp_path, line, PlanRequest(precisions=(Precision.FP32,)))


def test_a_script_that_is_not_the_config_gets_no_flags_of_it(tmp_path: Path) -> None:
    subject, request = said_to_train(tmp_path, "python main.py --batch_size {micro_batch_size} --lr 0.1")
    recipe = Recipe(micro_batch_size=8, learning_rate=0.2)
    told = replace(subject, config=replace(subject.config, said={}))
    patch = write_patch(recipe, told, request, why="it fits")
    assert command_to_run(told, recipe, patch) == "python main.py --batch_size 8 --lr 0.1"


def test_a_config_that_only_the_command_reads_is_left_to_it_without_a_hint_at_a_command(tmp_path: Path) -> None:
    path = tmp_path / "train.gin"
    path.write_text("train.batch_size = 4\n")
    command = CommandOptions(template="t {config} {micro_batch_size}", config_path=path)
    found = config_beside(command, [path], format_name=None, knob_keys=None, workload=None)
    assert found == (None, (f"no patch: {path}: files ending in '.gin' are not configs memplan reads",))


def test_a_config_of_which_trials_get_a_copy_must_be_readable(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("batch_size: 0\n")
    command = CommandOptions(template="t {patched_config}")
    with pytest.raises(ConfigError, match="batch_size=0 must be a whole number"):
        config_beside(command, [path], format_name=None, knob_keys=None, workload=None)


@pytest.mark.parametrize(
    ("template", "asked", "style"),
    [
        ("t {patched_config}", None, PatchStyle.IN_PLACE),
        ("t {patched_config}", PatchStyle.CHILD, PatchStyle.CHILD),
        ("t {config} {micro_batch_size}", None, None),
    ],
)
def test_the_line_to_run_reads_the_config_that_the_patch_changes(
    tmp_path: Path, template: str, asked: PatchStyle | None, style: PatchStyle | None
) -> None:
    config = config_of(tmp_path, "batch_size: 4\n", name="x.yaml")
    command = CommandOptions(template=template, config_path=config.path)
    assert subject_of_command(command, config, PlanRequest(patch_style=asked))[1].patch_style is style


def test_a_precision_that_only_the_command_can_say_is_the_first_of_the_next_plan(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("batch_size: 4\n")
    command = CommandOptions(template="t {micro_batch_size} {precision:fp32=,bf16=--amp}")
    subject, request = subject_of_command(command, read_config(path), PlanRequest())
    bf16 = Recipe(micro_batch_size=9, precision="bf16")
    assert "the config has no word for bf16: only the line to run sets it" in command_notes(subject, (), bf16)
    patch = write_patch(bf16, subject, request, why="it fits")
    assert patch is not None
    apply_patch(patch)
    again, request = subject_of_command(command, read_config(path), PlanRequest())
    assert again.current == bf16
    assert again.unwritable is None
    assert write_patch(bf16, again, request, why="it fits") is None
    asked = question(again, precisions=request.precisions)
    assert is_settled(trial(9, 700, precision="bf16"), asked)
    assert not is_settled(trial(9, 700), asked)


def test_precisions_are_compared_only_where_the_command_takes_one() -> None:
    assert subject_of(PLAIN)[1].precisions == (Precision.FP32,)
    assert subject_of(f"{PLAIN} {{precision}}")[1].precisions is None
    worded = f"{PLAIN} {{precision:bf16=a,fp16=b}}"
    subject, request = subject_of(worded)
    assert subject.current.precision is Precision.BF16
    assert request.precisions == (Precision.BF16, Precision.FP16)


def test_a_single_precision_says_what_a_command_trains_in() -> None:
    subject, request = subject_of(PLAIN, PlanRequest(precisions=(Precision.BF16,)))
    assert subject.current.precision is Precision.BF16
    assert request.precisions == (Precision.BF16,)


@pytest.mark.parametrize(
    ("template", "request_", "options", "said"),
    [
        (PLAIN, PlanRequest(precisions=(Precision.FP32, Precision.BF16)), {}, "cannot be compared"),
        (PLAIN, PlanRequest(global_batch_size=8), {}, "accumulation_steps"),
        (PLAIN, PlanRequest(), {"steps": 2}, "at least 3"),
        (f"{PLAIN} {{learning_rate}}", PlanRequest(), {}, "learning_rate"),
        (f"{PLAIN} {{config}}", PlanRequest(), {}, "config"),
        ("t {patched_config}", PlanRequest(), {}, "there is no config that memplan can change; write an option"),
    ],
)
def test_what_a_command_cannot_be_told_is_refused_before_anything_runs(template, request_, options, said) -> None:
    with pytest.raises(UsageError, match=said):
        subject_of(template, request_, **options)


UNSET = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch-size', type=int, default=8)\n"
OPEN = "{} leaves {} open: write the rate itself in the place of {{learning_rate}}, or set it there"


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("train.py", f"{UNSET}p.add_argument('--lr', type=float)\n", OPEN.format("train.py", "lr")),
        ("train.py", f"{UNSET}p.add_argument('--lr', type=float, default=None)\n", OPEN.format("train.py", "lr")),
        ("x.yaml", "batch_size: 8\nlearning_rate: null\n", OPEN.format("x.yaml", "learning_rate")),
        ("x.yaml", "batch_size: 8\n", "x.yaml has none under a usual name: "),
    ],
)
def test_a_rate_that_the_config_at_hand_leaves_open_is_not_looked_for_in_another(
    tmp_path: Path, name: str, text: str, hint: str
) -> None:
    config = config_of(tmp_path, text, name=name)
    command = CommandOptions(template=f"{PLAIN} {{learning_rate}}", config_path=config.path)
    with pytest.raises(UsageError) as refused:
        subject_of_command(command, config, PlanRequest())
    assert refused.value.hint is not None
    assert refused.value.hint.startswith(hint)


def test_a_copy_of_a_config_that_is_one_of_several_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text("data = dict(samples_per_gpu=4)\n")
    config = config_of(tmp_path, "_base_ = './base.py'\noptimizer = dict(type='SGD', lr=0.1)\n", name="x.py")
    command = CommandOptions(template="t {patched_config}", config_path=config.path)
    with pytest.raises(UsageError, match=r"x\.py is one of several files; write an option of the script"):
        subject_of_command(command, config, PlanRequest())


def test_a_global_batch_is_held_from_the_first_trial_on() -> None:
    subject, _ = subject_of(f"{PLAIN} {{accumulation_steps}}", PlanRequest(global_batch_size=18))
    assert subject.current == Recipe(micro_batch_size=3, accumulation_steps=6)


def test_accumulation_and_precision_are_obstacles_where_the_command_does_not_take_them() -> None:
    subject, _ = subject_of(PLAIN)
    assert subject.obstacle(Recipe(micro_batch_size=9)) is None
    assert (
        subject.obstacle(Recipe(micro_batch_size=4, accumulation_steps=2)) == "the command has no {accumulation_steps}"
    )


def test_a_command_that_takes_no_learning_rate_is_not_run_again_for_another_one() -> None:
    other = Recipe(micro_batch_size=8, learning_rate=0.1)
    assert subject_of(PLAIN)[0].as_tried(other) == Recipe(micro_batch_size=8)


def test_the_line_to_run_leaves_the_steps_to_the_user() -> None:
    subject, _ = subject_of(f"{PLAIN} --steps {{steps}}", steps=30)
    assert command_to_run(subject, Recipe(micro_batch_size=9)) == "python train.py --bs 9 --steps {steps}"
    notes = command_notes(subject, (), subject.current)
    assert any("after 30 optimizer steps" in note for note in notes)
    assert "the line to run leaves {steps} to you: put the length of your training there" in notes


@pytest.mark.parametrize("ending", ["&", " & ", "> log 2>&1 &"])
def test_a_command_in_the_background_is_refused(ending: str) -> None:
    with pytest.raises(UsageError, match=r"command: the command ends with &.*leave it out"):
        subject_of(f"{PLAIN} {ending}")
    assert subject_of(f"cd . && {PLAIN}")[0].is_command


def test_a_script_that_ends_before_its_steps_is_told_with_those_it_took() -> None:
    subject, _ = subject_of(PLAIN, steps=10)
    taken = {4: 10, 9: 6}
    found = [timed(size, 500, 0.5) for size in taken]
    ended = [replace(each.outcome.measurement, steps_taken=taken[each.recipe.micro_batch_size]) for each in found]
    trials = [
        replace(each, outcome=replace(each.outcome, measurement=measured))
        for each, measured in zip(found, ended, strict=True)
    ]
    said = "at fp32, 9 x 1 the script ended by itself after 6 optimizer steps, of 10 asked for: what it does after them"
    assert any(note.startswith(said) for note in command_notes(subject, trials, subject.current))
    assert any("after 10 optimizer" in note for note in command_notes(subject, trials[:1], subject.current))


def with_rates(micro_batch_size: int, learning_rate: float | None, highest_rate_taken: float | None) -> Trial:
    found = timed(micro_batch_size, 100 * micro_batch_size, 0.1 * micro_batch_size)
    measured = replace(found.outcome.measurement, learning_rate=learning_rate, highest_rate_taken=highest_rate_taken)
    return replace(found, outcome=replace(found.outcome, measurement=measured))


UNKNOWN_RATE = "memplan does not know the learning rate; scale it"


@pytest.mark.parametrize(
    ("rates", "taken", "said"),
    [
        ((0.1, 0.1), (0.1, 0.1), "the script's learning rate is the same at any batch: scale it"),
        (
            (0.1, 0.2),
            (0.1, 0.2),
            "the script itself sets its learning rate by the batch: 0.1 at 4 samples per optimizer",
        ),
        ((0.1, 0.2), (0.01, 0.01), "the script itself sets its learning rate by the batch"),
        ((1.0, 1.0), (0.1, 0.2), UNKNOWN_RATE),  # by a factor, or in a warm-up that is counted in epochs
        ((0.1, None), (0.1, None), UNKNOWN_RATE),
    ],
)
def test_what_becomes_of_the_rate_is_told_by_what_the_script_does(
    rates: tuple[float | None, ...], taken: tuple[float | None, ...], said: str
) -> None:
    subject, _ = subject_of(PLAIN)
    trials = [with_rates(*each) for each in zip((4, 8), rates, taken, strict=True)]
    assert any(each.startswith(said) for each in command_notes(subject, trials, trials[1].recipe))
    assert not any("learning rate" in each for each in command_notes(subject, trials, subject.current))


@pytest.mark.parametrize(("optimizers_rate", "is_told"), [(0.5, False), (0.004, True), (None, False)])
def test_a_rate_of_the_optimizer_that_is_not_the_configs_is_told_before_it_changes(
    tmp_path: Path, optimizers_rate: float | None, is_told: bool
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("batch_size: 4\nlr: 0.5\n")
    command = CommandOptions(template="t {config} {micro_batch_size}", config_path=path)
    subject, _ = subject_of_command(command, read_config(path), PlanRequest())
    found = with_rates(4, optimizers_rate, optimizers_rate)
    trials = [replace(found, recipe=subject.current)]
    said = "the optimizer's rate was 0.004, where the config says 0.5: check that the script takes it from there"
    notes = command_notes(subject, trials, Recipe(micro_batch_size=8, learning_rate=1.0))
    assert any(each.startswith(said) for each in notes) is is_told
    assert not any(said in each for each in command_notes(subject, trials, subject.current))


@pytest.mark.parametrize(("setting", "is_told"), [("", True), ("precision: fp32\n", False)])
def test_a_precision_that_the_config_has_no_word_for_is_said_to_be_the_commands(
    tmp_path: Path, setting: str, is_told: bool
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"batch_size: 4\n{setting}")
    command = CommandOptions(template="t {patched_config}", config_path=path)
    subject, _ = subject_of_command(command, read_config(path), PlanRequest())
    notes = command_notes(subject, (), subject.current)
    assert ("the precision is the command's own and is shown as fp32" in notes) is is_told


def test_trials_that_came_to_the_end_of_the_script_are_named() -> None:
    subject, _ = subject_of(PLAIN, steps=10)
    whole, *ended = (replace(timed(4, 500, 0.5), number=number) for number in (1, 2, 3))
    ended_by_itself = "the command ended by itself, and took no more than 1 optimizer step"
    short = replace(ended[0].outcome.measurement, steps_taken=6)
    one = replace(ended[0], outcome=replace(ended[0].outcome, measurement=short))
    none = replace(
        ended[1],
        outcome=replace(ended[1].outcome, kind=OutcomeKind.TOO_FEW_STEPS, measurement=None, evidence=ended_by_itself),
    )
    said = "the script came to its end in {}: what it writes there, such as a checkpoint, is written"
    assert said.format("trials 2, 3") in command_notes(subject, (whole, one, none), subject.current)
    assert said.format("trial 3") in command_notes(subject, (whole, none), subject.current)
    assert not any("came to its end" in each for each in command_notes(subject, (whole,), subject.current))


def test_a_rate_that_memplan_does_not_know_is_told_where_it_is_to_change() -> None:
    subject, _ = subject_of(PLAIN)
    recipes = (subject.current, replace(subject.current, micro_batch_size=2 * subject.current.micro_batch_size))
    told = [
        any("does not know the learning rate" in each for each in command_notes(subject, (), one)) for one in recipes
    ]
    assert told == [False, True]


@pytest.mark.parametrize("placeholder", ["{micro_batch_size}", "{global_batch_size}", "{patched_config}"])
def test_a_doubt_about_the_batch_names_the_placeholder_that_sets_it(tmp_path: Path, placeholder: str) -> None:
    config = config_of(tmp_path, "batch_size: 4\n", name="x.yaml")
    command = CommandOptions(template=f"python train.py {placeholder}", config_path=config.path)
    subject, _ = subject_of_command(command, config, PlanRequest())
    notes = command_notes(subject, (trial(4, 500), trial(9, 502)), subject.current)
    doubt = f"the peaks at micro-batch 4 and 9 are alike: check that the script heeds what {placeholder} sets"
    assert doubt in notes


def test_peaks_that_do_not_follow_the_micro_batch_raise_a_doubt() -> None:
    subject, _ = subject_of(PLAIN)
    flat, rising = (trial(4, 500), trial(9, 502)), (trial(4, 500), trial(9, 520))
    assert any("4 and 9 are alike" in note for note in command_notes(subject, flat, subject.current))
    assert not any("alike" in note for note in command_notes(subject, rising, subject.current))
    assert not any("alike" in note for note in command_notes(subject, flat[:1], subject.current))
    many_times = (timed(4, 500, 0.5), timed(128, 610, 0.6))
    assert command_notes(subject, many_times, subject.current)[0].startswith(
        "the peaks at micro-batch 4 and 128 are alike"
    )
    assert not any(
        "alike" in note for note in command_notes(subject, (*many_times[:1], timed(64, 610, 0.6)), subject.current)
    )
    slower = (timed(4, 500, 0.25), timed(9, 500, 0.5))
    assert not any("alike" in note for note in command_notes(subject, slower, subject.current))


@pytest.mark.parametrize(
    ("micro_batch_size", "allocated", "step_s", "stays"),
    [(128, 505, 1.0, True), (127, 505, 1.0, False), (128, 506, 1.0, False), (128, 505, 1.01, False)],
)
def test_a_recipe_stays_where_many_times_its_samples_take_no_more(
    micro_batch_size: int, allocated: int, step_s: float, stays: bool
) -> None:
    subject, _ = subject_of(PLAIN)
    reason = reason_to_stay(subject, (timed(4, 500, 0.5), timed(micro_batch_size, allocated, step_s)))
    assert (reason is not None) is stays


def test_one_disturbed_step_does_not_hide_that_the_batch_is_not_heeded() -> None:
    subject, _ = subject_of(PLAIN)
    busy = timed(4096, 500, 0.5)
    measured = replace(busy.outcome.measurement, step_times_s=(5.0, 0.5, 5.0))
    trials = (timed(4, 500, 0.5), replace(busy, outcome=replace(busy.outcome, measurement=measured)))
    assert reason_to_stay(subject, trials) == (
        "Steps of micro-batch 4 and 4096 take the same memory, and hardly more time: nothing shows that the script "
        "trains on more samples, so that the recipe stays as it is"
    )
    assert reason_to_stay(subject, trials[:1]) is None


@pytest.mark.parametrize(
    ("allocated", "step_s", "is_said"), [(600, 0.5, True), (605, 0.54, True), (650, 0.5, False), (600, 1.0, False)]
)
def test_batches_that_the_script_may_not_fill_raise_a_doubt(allocated: int, step_s: float, is_said: bool) -> None:
    subject, _ = subject_of(PLAIN)
    found = (timed(4, 500, 0.25), timed(9, 600, 0.5), timed(18, allocated, step_s))
    notes = command_notes(subject, found, subject.current)
    assert (
        any(each.startswith("steps of micro-batch 9 and 18 take the same memory and time") for each in notes) is is_said
    )
    assert not any("the same memory and time" in each for each in command_notes(subject, found[:2], subject.current))


@pytest.mark.parametrize(("duration_s", "is_said"), [(100.0, True), (9.0, False)])
def test_time_that_passes_outside_of_steps_is_named(duration_s: float, is_said: bool) -> None:
    subject, _ = subject_of(PLAIN)  # ten steps of half a second
    one = trial(4, 500)
    slow = replace(one, outcome=replace(one.outcome, duration_s=duration_s))
    said = "95 of the trials' 100 s passed outside of optimizer steps"
    assert any(said in note for note in command_notes(subject, (slow,), subject.current)) is is_said


@pytest.mark.parametrize(
    ("template", "style", "said"),
    [
        ("", PatchStyle.IN_PLACE, "apply the patch, or set 0.002 there"),
        ("", PatchStyle.CHILD, "apply the patch and let the line read x_memplan.py, or set 0.002 there"),
        (" {learning_rate}", PatchStyle.CHILD, None),
    ],
)
def test_a_line_that_keeps_the_old_rate_says_so(
    tmp_path: Path, template: str, style: PatchStyle, said: str | None
) -> None:
    config = config_of(
        tmp_path, "data = dict(samples_per_gpu=4)\noptimizer = dict(type='SGD', lr=0.001)\n", name="x.py"
    )
    command = CommandOptions(template=f"t {{micro_batch_size}}{template}", config_path=config.path)
    subject, request = subject_of_command(command, config, PlanRequest(patch_style=style))
    recipe = Recipe(micro_batch_size=8, learning_rate=0.002)
    notes = notes_on_line_to_run(subject, recipe, write_patch(recipe, subject, request, why="it fits"))
    assert notes == (() if said is None else (f"the line to run leaves the learning rate as it is: {said}",))


def test_a_line_that_reads_the_config_asks_for_the_patch_where_there_is_one(tmp_path: Path) -> None:
    config = config_of(tmp_path, "batch: 4\n", knob_keys={"micro_batch_size": "batch"})
    command = CommandOptions(template="t {patched_config}", config_path=config.path)
    subject, request = subject_of_command(command, config, PlanRequest())
    larger = Recipe(micro_batch_size=8)
    patch = write_patch(larger, subject, request, why="it fits")
    assert patch is not None
    assert notes_on_line_to_run(subject, larger, patch) == ("the line to run reads the config: apply the patch first",)
    assert notes_on_line_to_run(subject, config.recipe, None) == ()


@pytest.mark.parametrize(("template", "flags"), [("t {patched_config}", False), ("t {micro_batch_size}", True)])
def test_a_command_that_reads_the_config_alone_is_offered_no_flags_in_its_place(
    tmp_path: Path, template: str, flags: bool
) -> None:
    config = config_of(tmp_path, "per_device_train_batch_size: 4\nlearning_rate: 0.001\n", name="args.yaml")
    command = CommandOptions(template=template, config_path=config.path)
    subject, request = subject_of_command(command, config, PlanRequest())
    patch = write_patch(Recipe(micro_batch_size=8), subject, request, why="it fits")
    assert patch is not None
    assert patch.override_line == ("--per_device_train_batch_size 8" if flags else None)


def test_an_edited_script_is_another_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("a = 1\n")
    request = PlanRequest(device="cpu")
    before, again = (fingerprint_of(question_of(*subject_of(PLAIN, request)), {}) for _ in range(2))
    script.write_text("a = 2\n")
    after = fingerprint_of(question_of(*subject_of(PLAIN, request)), {})
    assert before == again
    assert before != after


def test_a_command_for_a_card_that_is_not_here_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    subject, request = subject_of(PLAIN, PlanRequest(device="rtx-3090", store=tmp_path))
    with pytest.raises(UsageError, match="'rtx-3090' is not present; a training command is only run live"):
        Planning(question_of(subject, request), ignore).plan()


def test_a_first_micro_batch_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="batch-size 0 must be a whole number of at least 1"):
        command_options("train --bs {micro_batch_size}", (), steps=None, batch_size=0, workload=None)
