"""transformers' own parser reads the patch too, where it is installed, and is not asked about this machine."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from fractions import Fraction
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from memplan.configs import RecipeChange, plan_patch, read_config
from memplan.configs.writing import verification
from memplan.configs.writing.verification import OWN_READER, verify
from memplan.errors import PatchError

if TYPE_CHECKING:
    from pathlib import Path

NEEDS_TRANSFORMERS = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
ARGUMENTS = """\
model_name_or_path: net  # an argument of the script's own
per_device_train_batch_size: 4
learning_rate: 2.0e-4
save_steps: 100.0
tf32: true
output_dir: ~/out
report_to: none
collected: 2026-11-21
deepspeed: not-there.json
"""
SCRIPT = """\
accelerate launch run.py --model_name_or_path net --per_device_train_batch_size 4 --learning_rate 2e-4 \\
  --report_to wandb --do_train --output_dir "$OUT" --num_train_epochs 3 --weight_decay 0.
"""


def verified_by(path: Path, text: str) -> str:
    """Double the batch and switch bf16 on, which TrainingArguments refuse on a machine without a card."""
    path.write_text(text, encoding="utf-8")
    config = read_config(path)
    recipe = replace(config.recipe, micro_batch_size=8, precision="bf16", activation_checkpointing=True)
    return plan_patch(config, RecipeChange(recipe=recipe, optimizer_step_factor=Fraction(1, 2))).verified_by


@NEEDS_TRANSFORMERS
@pytest.mark.parametrize(("name", "text"), [("x.yaml", ARGUMENTS), ("x.sh", SCRIPT)])
def test_transformers_reads_the_patch_without_a_card(tmp_path: Path, name: str, text: str) -> None:
    assert verified_by(tmp_path / name, text) == f"transformers {version('transformers')}"
    assert [each.name for each in tmp_path.iterdir()] == [name]


@NEEDS_TRANSFORMERS
def test_a_key_that_transformers_does_not_know_is_left_to_memplans_reader(tmp_path: Path) -> None:
    text = "micro_batch_size: 4\noutput_dir: out\n"
    expected = f"transformers {version('transformers')}, and {OWN_READER} for micro_batch_size"
    assert verified_by(tmp_path / "x.yaml", text) == expected


@NEEDS_TRANSFORMERS
def test_a_file_that_transformers_refuses_as_it_is_is_no_fault_of_the_patch(tmp_path: Path) -> None:
    found = verified_by(tmp_path / "x.yaml", ARGUMENTS + "save_strategy: sometimes\n")
    assert found.startswith(
        f"{OWN_READER}, as transformers {version('transformers')} does not load the file as it is: "
    )
    assert "sometimes is not a valid SaveStrategy" in found


@NEEDS_TRANSFORMERS
@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("tf32: true", "fp16: true\nbf16: true", "would not load the patched config: .*At most one of fp16 and bf16"),
        ("save_steps: 100.0", "eval_strategy: steps\nlogging_steps: 0", "would not load .* requires either non-zero"),
    ],
)
def test_a_patch_that_transformers_refuses_is_not_offered(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path, patched = tmp_path / "x.yaml", tmp_path / "patched.yaml"
    path.write_text(ARGUMENTS, encoding="utf-8")
    patched.write_text(ARGUMENTS.replace(old, new), encoding="utf-8")
    with pytest.raises(PatchError, match=problem):
        verify(
            path,
            {str(path): patched.read_text(encoding="utf-8")},
            read_config(patched).values,
            document=read_config(path).document,
            packages=("transformers",),
        )


def test_without_transformers_memplans_reader_stands_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "find_spec", lambda _: None)
    assert verified_by(tmp_path / "x.yaml", ARGUMENTS) == OWN_READER
