"""The main job on a plain YAML config whose knobs are declared on the command line."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.cpu_budgets import cpu_budget
from tests.integration.conftest import CONFIG, MAPS, make_project, memplan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.conftest import Ended

PROBE = ("probe", "config.yaml", "--workload", "net:make_workload", *MAPS, "--precision", "fp32", "--device")
ONE_PROBE = pytest.mark.xdist_group("plain yaml")  # one worker probes, and not each that gets one of these tests


def git(*arguments: str, cwd: Path) -> None:
    subprocess.run([shutil.which("git") or "git", *arguments], cwd=cwd, check=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The project after a probe whose patch is written to a file: where it is, and what was said."""

    folder: Path
    said: str


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Probed:
    folder = make_project(tmp_path_factory.mktemp("probed"))
    ended = memplan(*PROBE, "cpu", *cpu_budget(768).options, "--output", "change.diff", cwd=folder)
    assert ended.status == 0, ended.err
    return Probed(folder=folder, said=ended.out)


@ONE_PROBE
@pytest.mark.slow
def test_the_patch_applies_with_git(probed: Probed, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    assert probed.said.count("is only on or off") == 1, "what the heading tells of the config is not told again"
    git("init", "-q", ".", cwd=tmp_path)
    git("apply", str(probed.folder / "change.diff"), cwd=tmp_path)
    assert (tmp_path / "config.yaml").read_text() != CONFIG


@ONE_PROBE
@pytest.mark.slow
def test_a_plain_config_is_brought_into_the_band_patched_and_then_left_alone(
    probed: Probed, command: Callable[..., Ended]
) -> None:
    project = probed.folder
    first = command("report", "--json", cwd=project).document
    plan = first["plan"]
    assert command("report", cwd=project).out.endswith(f"\napply it with:  memplan apply {plan['run_id']}\n")
    (chosen,) = [each for each in first["trials"] if each["number"] == plan["chosen"]["number"]]
    assert 0.6 <= chosen["utilisation"] <= 0.8
    assert (project / "config.yaml").read_text() == CONFIG, "nothing is touched before the patch is applied"

    applied = command("apply", "last", cwd=project)
    assert applied.status == 0, applied.err
    before, after = yaml.safe_load(CONFIG), yaml.safe_load((project / "config.yaml").read_text())
    size = plan["recipe"]["micro_batch_size"]
    assert after["data"] == {**before["data"], "batch_size": size}
    assert after["optimizer"]["lr"] == pytest.approx(1.0e-3 * size / 2), "the linear rule follows the global batch"
    assert after["training"] == before["training"]

    second = command(*PROBE, "cpu", *cpu_budget(768).options, "--json", "--output", "change.diff", cwd=project)
    assert second.status == 0, second.err
    assert second.document["plan"]["config_patch"] is None, "a patched config asked the same again stays as it is"
    assert len(second.document["trials"]) == 1
    assert "there is no patch, so change.diff is not written" in second.err


@pytest.mark.slow
def test_a_global_batch_is_held_exactly_by_accumulation_and_keeps_the_learning_rate(
    project: Path, command: Callable[..., Ended]
) -> None:
    (project / "config.yaml").write_text(CONFIG.replace("use_amp: false", "use_amp: false\n  accumulation: 1"))
    ended = command(
        *PROBE, "cpu", *cpu_budget(768).options, "--map", "accumulation_steps=training.accumulation",
        "--global-batch", "96", "--json", cwd=project,
    )  # fmt: skip
    assert ended.status == 0, ended.err
    recipe = ended.document["plan"]["recipe"]
    assert recipe["micro_batch_size"] * recipe["accumulation_steps"] == 96
    assert recipe["learning_rate"] == 1.0e-3
    assert ended.document["plan"]["chosen"]["recipe"] == recipe, "the exact recipe was run"


@pytest.mark.slow
def test_a_budget_that_nothing_fits_ends_with_status_3_and_what_it_would_take(
    project: Path, command: Callable[..., Ended]
) -> None:
    ended = command(*PROBE, "cpu", "--budget", "200MiB", cwd=project)
    assert ended.status == 3, ended.err
    assert ended.err.startswith("memplan: nothing fits 200.0 MiB at max-util 0.8")
    assert "it would take a device or budget of" in ended.err
    reported = command("report", "--json", cwd=project).document
    assert (reported["status"], f"memplan: {reported['failure']}\n") == ("failed", ended.err)
    assert (project / "config.yaml").read_text() == CONFIG


@pytest.mark.slow
def test_a_card_that_is_not_there_is_planned_for_by_estimate_and_checked_on_the_cpu(
    project: Path, command: Callable[..., Ended]
) -> None:
    ended = command(*PROBE, "rtx-3090", "--json", cwd=project)
    assert ended.status == 0, ended.err
    plan = ended.document["plan"]
    assert plan["chosen"] is None
    assert plan["estimate"]["device_name"] == "rtx-3090"
    assert plan["estimate"]["peak_process_bytes"] <= 0.8 * plan["device_total_bytes"]
    assert any("rtx-3090 is not present" in note for note in plan["notes"])
    assert any(note.startswith("checked live on the CPU at micro-batch 2") for note in plan["notes"])
