"""The copy of a config that trials of a command read has the values that are tried."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.planning.commands import CommandOptions, subject_of_command
from memplan.planning.trials.patched_configs import source_of_trial
from memplan.plans import PlanRequest
from memplan.recipe import Recipe
from tests.making import config_of, question

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "batch_size: 4  # a step's\nlr: 0.1\nprecision: fp32\n"


def source_at(folder: Path, recipe: Recipe, template: str = "t {patched_config}", text: str = TEXT) -> Any:
    config = config_of(folder, text)
    options = CommandOptions(template=template, config_path=config.path)
    subject, _ = subject_of_command(options, config, PlanRequest())
    return source_of_trial(question(subject), recipe)


def test_the_copy_says_what_is_tried_and_keeps_all_else(tmp_path: Path) -> None:
    recipe = Recipe(micro_batch_size=12, precision="bf16", learning_rate=0.3)
    text = source_at(tmp_path, recipe).config_text
    assert text.startswith("batch_size: 12  # a step's\nlr: 0.3\nprecision: bf16\n")
    assert (tmp_path / "x.yaml").read_text() == TEXT


def test_what_the_config_says_already_is_tried_with_its_own_text(tmp_path: Path) -> None:
    assert source_at(tmp_path, Recipe(micro_batch_size=4, learning_rate=0.1)).config_text == TEXT


def test_a_precision_that_only_the_command_can_say_is_left_to_it(tmp_path: Path) -> None:
    template = "t {patched_config} {precision:fp32=,bf16=--amp}"
    source = source_at(tmp_path, Recipe(micro_batch_size=12, precision="bf16"), template, "batch_size: 4\n")
    assert source.config_text.startswith("batch_size: 12\n")


def test_a_command_that_takes_its_batch_as_an_option_gets_no_copy(tmp_path: Path) -> None:
    source = source_at(tmp_path, Recipe(micro_batch_size=12), "t {config} {micro_batch_size}")
    assert source.config_text is None


def test_a_copy_lets_a_command_take_precision_rate_and_accumulation(tmp_path: Path) -> None:
    config = config_of(tmp_path, f"{TEXT}accumulation_steps: 1\n")
    options = CommandOptions(template="t {patched_config}", config_path=config.path)
    subject, request = subject_of_command(options, config, PlanRequest(global_batch_size=12))
    assert (subject.current.micro_batch_size, subject.current.accumulation_steps) == (4, 3)
    tried = replace(subject.current, precision="bf16", learning_rate=0.3)
    assert (request.precisions, subject.obstacle(tried), subject.as_tried(tried)) == (None, None, tried)
