"""A plan's remarks on the loader, from the settings the config spells out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from memplan.configs import KnobName, RecipeChange, apply_patch, plan_patch, read_config
from memplan.planning.recommendation import Recommendation
from memplan.planning.writing.data_loader import loader_changes, loader_notes
from memplan.recipe import Recipe
from memplan.results import LoaderSpeed, TypicalStep
from tests.making import CARD, config_of, trial

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.results import Trial

WANTED = Recommendation(recipe=Recipe(micro_batch_size=4), estimate=None, chosen=None, trials=(), reasons=())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.yaml", "per_device_train_batch_size: 4\noutput_dir: o\ndataloader_num_workers: 0\n"),
        ("x.yaml", "model: net\nopt: sgd\nsched: cosine\nbatch_size: 4\nworkers: 0\n"),
        ("x.yaml", "trainer: {devices: 1}\ndata: {batch_size: 4, num_workers: 0}\n"),
        ("x.py", "data = dict(samples_per_gpu=4, workers_per_gpu=0)\n"),
        (
            "x.py",
            "train_dataloader = dict(batch_size=4, num_workers=0)\noptim_wrapper = dict(optimizer=dict(lr=1e-3))\n",
        ),
        ("x.yaml", "batch_size: 4\ndata: {num_workers: 0}\n"),
        ("x.py", "BATCH_SIZE = 4\nNUM_WORKERS = 0\n"),
        ("x.sh", "python t.py --batch_size 4 --num_workers 0\n"),
    ],
)
def test_the_settings_are_found_where_each_ecosystem_keeps_them(name: str, text: str, tmp_path: Path) -> None:
    notes = loader_notes(config_of(tmp_path, text, name=name), CARD, WANTED)
    assert notes[0].startswith("with 0 loader workers")


@pytest.mark.parametrize(
    "loaders",
    ["train: {num_workers: 0}\npretrain: {num_workers: 0}", "num_workers: some", "evaluation: {num_workers: 0}", ""],
    ids=["two", "no number", "of evaluation", "none"],
)
def test_in_a_plain_config_only_an_unmistakable_setting_is_taken(loaders: str, tmp_path: Path) -> None:
    assert loader_notes(config_of(tmp_path, f"batch_size: 4\n{loaders}\n"), CARD, WANTED) == ()


def test_settings_of_a_plain_config_are_changed(tmp_path: Path) -> None:
    config = config_of(tmp_path, "batch_size: 4\nloader:\n  num_workers: 2\n  pin_memory: false\n")
    change = RecipeChange(recipe=config.recipe, loader=loader_changes(config, CARD, None))
    assert [(each.key, each.after) for each in plan_patch(config, change).changes] == [("loader.pin_memory", "true")]


def test_a_declared_knob_counts_too(tmp_path: Path) -> None:
    keys = {"micro_batch_size": "b", "loader_workers": "loader.n", "persistent_workers": "loader.keep"}
    notes = loader_notes(config_of(tmp_path, "b: 4\nloader: {n: 0, keep: true}\n", knob_keys=keys), CARD, WANTED)
    assert "torch refuses that" in notes[0]


def test_without_a_config_there_is_nothing_to_say() -> None:
    assert loader_notes(None, CARD, WANTED) == ()
    assert loader_changes(None, CARD, None) == {}


MMENGINE = "train_dataloader = dict(batch_size=4, num_workers=2{})\noptim_wrapper = dict(optimizer=dict(lr=1e-3))\n"


def test_what_the_rules_would_change_is_offered_by_its_keys(tmp_path: Path) -> None:
    config = config_of(tmp_path, MMENGINE.format(", persistent_workers=True"), name="x.py")
    assert loader_notes(config, CARD, WANTED) == (
        "with --loader the patch would also set train_dataloader.pin_memory=True",
    )
    change = RecipeChange(recipe=config.recipe, loader=loader_changes(config, CARD, None))
    assert loader_notes(config, CARD, WANTED, plan_patch(config, change), is_asked_for=True) == ()
    unwritten = "the patch cannot set train_dataloader.pin_memory=True"
    assert loader_notes(config, CARD, WANTED, None, is_asked_for=True) == (unwritten,)


def test_a_setting_without_a_key_is_left_to_the_program(tmp_path: Path) -> None:
    config = config_of(tmp_path, "trainer: {devices: 1}\ndata: {batch_size: 4, num_workers: 2}\n")
    assert loader_changes(config, CARD, None) == {}


def test_a_second_run_starts_from_what_the_config_said_at_first(tmp_path: Path) -> None:
    config = config_of(tmp_path, MMENGINE.format(", pin_memory=True, persistent_workers=False"), name="x.py")
    wanted = loader_changes(config, CARD, None)
    assert wanted == {KnobName.PERSISTENT_WORKERS: True}
    apply_patch(plan_patch(config, RecipeChange(recipe=config.recipe, loader=wanted)))
    patched = read_config(tmp_path / "x_memplan.py")
    assert patched.values["train_dataloader"]["persistent_workers"] is True
    assert loader_changes(patched, CARD, None) == {}


def _measured(number: int, **figures: Any) -> Trial:
    made = trial(4, 500, number=number, samples_per_s=100.0)
    assert made.outcome.measurement is not None
    measurement = replace(made.outcome.measurement, **figures)
    return replace(made, outcome=replace(made.outcome, measurement=measurement))


def test_the_loader_of_one_trial_is_compared_with_the_steps_of_the_chosen_one() -> None:
    first, chosen = _measured(1, loader=LoaderSpeed(samples_per_s=50.0, workers=1)), _measured(2)
    (note,) = loader_notes(None, CARD, replace(WANTED, chosen=chosen, trials=(first, chosen)))
    assert "makes 50.0 samples/s" in note
    assert "100.0 wait" in note


def test_workers_that_the_config_does_not_tell_are_those_that_were_seen() -> None:
    chosen = _measured(1, loader=LoaderSpeed(samples_per_s=1e6, workers=999))
    (note,) = loader_notes(None, CARD, replace(WANTED, chosen=chosen, trials=(chosen,)))
    assert note.startswith("999 loader workers share ")


def test_a_loader_is_compared_with_steps_on_batches_as_most_are() -> None:
    loader = LoaderSpeed(samples_per_s=150.0, workers=1)
    chosen = _measured(1, loader=loader, typical=TypicalStep(peak_allocated_bytes=0, samples_per_s=300.0))
    (note,) = loader_notes(None, CARD, replace(WANTED, chosen=chosen, trials=(chosen,)))
    assert "300.0 wait" in note
