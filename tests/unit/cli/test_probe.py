"""What `memplan probe` does with a plan."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from memplan.cli.probe import _deliver
from memplan.configs import RecipeChange, plan_patch
from memplan.recipe import Recipe
from tests.making import config_of, plan

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("rank", "is_applied"), [(None, True), ("0", True), ("1", False)])
def test_of_several_processes_the_first_applies_the_patch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str | None, is_applied: bool
) -> None:
    config = config_of(tmp_path, "batch_size: 4\n", knob_keys={"micro_batch_size": "batch_size"})
    wanted = Recipe(micro_batch_size=8)
    patch = plan_patch(config, RecipeChange(recipe=wanted))
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
    said = io.StringIO()
    made = replace(plan(config.recipe, wanted), config_patch=patch)
    _deliver(made, Console(file=said), output=None, apply_now=True, store=tmp_path)
    assert config.path.read_text(encoding="utf-8").startswith("batch_size: 8" if is_applied else "batch_size: 4")
    assert bool(said.getvalue()) is is_applied
