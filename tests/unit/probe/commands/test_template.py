"""A training command with placeholders: what is understood, and what a filled one looks like."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import UsageError
from memplan.probe.commands.template import command_obstacle, fill_command, fill_template, parse_template
from memplan.recipe import Precision, Recipe
from tests.making import command

RECIPE = Recipe(micro_batch_size=12, accumulation_steps=2, precision="bf16", learning_rate=1e-4)


def filled(text: str, recipe: Recipe = RECIPE, *, config_path: str | None = "a.py", steps: int | None = 30) -> str:
    return fill_template(parse_template(text), recipe, config_path=config_path, steps=steps)


def test_every_placeholder_gets_its_value() -> None:
    text = "t {config} {micro_batch_size} {accumulation_steps} {precision} {learning_rate} {steps}"
    assert filled(text) == "t a.py 12 2 bf16 0.0001 30"


def test_a_script_that_takes_the_batch_of_all_replicas_gets_that() -> None:
    recipe = Recipe(micro_batch_size=4, accumulation_steps=3, world_size=2)
    template = parse_template("python train.py --total {global_batch_size}")
    assert fill_template(template, recipe, config_path=None, steps=None) == "python train.py --total 24"


def test_a_config_with_spaces_stays_one_word_of_the_shell() -> None:
    assert filled("t {config} {micro_batch_size}", config_path="my run.py") == "t 'my run.py' 12"


def test_a_script_that_reads_its_batch_from_a_config_alone_gets_a_copy_and_later_the_config_itself() -> None:
    made = replace(command("t {patched_config}"), config_path="my run.yaml")
    assert fill_command(made, RECIPE, patched_path="/x y.yaml") == "t '/x y.yaml'"
    assert fill_command(made, RECIPE) == "t 'my run.yaml'"


def test_a_script_that_counts_forward_passes_has_enough_of_them_for_every_step() -> None:
    assert fill_command(command("t {micro_batch_size} {steps}", steps=30), RECIPE) == "t 12 60"


def test_steps_that_are_left_to_the_user_stay_a_placeholder() -> None:
    assert filled("t {micro_batch_size} --max-steps {steps}", steps=None) == "t 12 --max-steps {steps}"


def test_a_script_gets_its_own_words_for_precisions() -> None:
    text = "t {micro_batch_size} {precision:fp32=,bf16=--bf16}"
    assert filled(text) == "t 12 --bf16"
    assert filled(text, Recipe(micro_batch_size=1)) == "t 1 "
    assert parse_template(text).precisions == (Precision.FP32, Precision.BF16)


def test_what_belongs_to_the_shell_is_left_alone() -> None:
    text = "cd ${HOME} && t {micro_batch_size} $(ls) {a,b} {{x}} '$x' {{steps: ${steps:-3}}} {stepsize"
    assert filled(text) == "cd ${HOME} && t 12 $(ls) {a,b} {x} '$x' {steps: ${steps:-3}} {stepsize"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("t {of_all}", "{of_all} is not known; known are"),
        ("t {lr}", "{lr} is not known; did you mean {learning_rate}?"),
        ("t {batch_size}", "{batch_size} is not known; did you mean {micro_batch_size} or"),
        ("t {micro_batch_siz}", "{micro_batch_siz} is not known; did you mean {micro_batch_size} or"),
        (
            "t --bs 4",
            "has no {micro_batch_size}; write it where your script .* from CONFIG alone, write {patched_config}",
        ),
        ("t {config}", "has no {micro_batch_size}; .* write {patched_config} in the place of {config}"),
        ("t {micro_batch_size:a=b}", "takes no words"),
        ("t {micro_batch_size} {precision:bf16}", "is not understood"),
        ("t {micro_batch_size} {precision:half=x}", "'half' is not known"),
        ("t {micro_batch_size} {precision:fp32=,bf16=--half", "{precision:fp32=,bf16=--half is not closed"),
        ("t --bs {micro_batch_size", "{micro_batch_size is not closed; write {micro_batch_size}, or {{ and }} for"),
        ("t {steps {micro_batch_size}", "{steps is not closed"),
    ],
)
def test_a_command_that_cannot_be_understood_is_refused_with_the_word_that_is_wrong(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("{", r"\{")):
        parse_template(text)


@pytest.mark.parametrize(
    ("text", "recipe", "said"),
    [
        ("{config} {micro_batch_size}", RECIPE, "{config}"),
        ("{learning_rate} {micro_batch_size}", Recipe(micro_batch_size=1), "{learning_rate}"),
        ("{precision:fp32=a} {micro_batch_size}", RECIPE, "no word for bf16"),
    ],
)
def test_a_value_that_memplan_does_not_have_is_asked_for(text: str, recipe: Recipe, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("{", r"\{")):
        filled(text, recipe, config_path=None)


def test_a_command_is_only_told_what_it_has_a_place_for() -> None:
    now = Recipe(micro_batch_size=4)
    other_precision, other_accumulation = (
        Recipe(micro_batch_size=4, precision="bf16"),
        Recipe(micro_batch_size=4, accumulation_steps=2),
    )
    silent = parse_template("t {micro_batch_size}")
    assert command_obstacle(silent, now, Recipe(micro_batch_size=9)) is None
    assert command_obstacle(silent, now, other_precision) == "the command has no {precision}"
    assert command_obstacle(silent, now, other_accumulation) == "the command has no {accumulation_steps}"
    assert command_obstacle(parse_template("t {micro_batch_size} {precision}"), now, other_precision) is None
    worded = parse_template("t {micro_batch_size} {precision:fp32=a}")
    assert command_obstacle(worded, now, other_precision) == "the command has no word for bf16"


@given(st.text(alphabet=st.characters(exclude_characters="{}$")))
def test_text_without_braces_goes_through_unchanged(text: str) -> None:
    assert filled(text + "{micro_batch_size}") == text + "12"
