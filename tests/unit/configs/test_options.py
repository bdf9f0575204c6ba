"""What a config and its project set for memplan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan.configs import KnobName, read_config
from memplan.configs.options import options_of
from memplan.errors import ConfigError
from tests.making import config_of

if TYPE_CHECKING:
    from pathlib import Path


def test_the_config_wins_over_the_project(tmp_path: Path) -> None:
    section = '[tool.memplan]\nworkload = "a:b"\ndevice = "a100-40gb"\nprecision = "fp32,bf16"\n'
    section += '[tool.memplan.knobs]\nlearning_rate = "lr"\n'
    (tmp_path / "pyproject.toml").write_text(section)
    found = options_of(
        tmp_path / "x.py", {"memplan": {"workload": "c:d", "knobs": {"micro_batch_size": "b"}, "max_util": 0.7}}
    )
    assert (found.workload, found.device, found.max_util) == ("c:d", "a100-40gb", 0.7)
    assert found.knobs == {"learning_rate": "lr", "micro_batch_size": "b"}
    assert found.precision == ("fp32", "bf16")


def test_the_loader_is_opened_in_the_project_and_closed_in_the_config(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.memplan]\nloader = true\n")
    assert options_of(tmp_path / "x.py", {}).loader is True
    assert options_of(tmp_path / "x.py", {"memplan": {"loader": False}}).loader is False


def test_declared_knobs_are_read_from_the_project_and_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.memplan.knobs]\nmicro_batch_size = "data.n"\n')
    assert config_of(tmp_path, "data: {n: 4, m: 6}\nsteps: 10\nevery: 5\n").recipe.micro_batch_size == 4
    config = read_config(tmp_path / "x.yaml", knob_keys={"micro_batch_size": "data.m", "iterations": "steps, every"})
    assert config.recipe.micro_batch_size == 6
    assert [each.key for each in config.knobs if each.name is KnobName.ITERATIONS] == ["steps", "every"]


def test_a_config_without_a_workload_says_what_to_add(tmp_path: Path) -> None:
    config = config_of(tmp_path, "data = dict(samples_per_gpu=4)\n", name="x.py")
    with pytest.raises(ConfigError, match="names no workload"):
        _ = config.workload
    assert read_config(tmp_path / "x.py", workload_target="m:f").workload.target == "m:f"


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        (
            "t.py",
            "parser.add_argument('-b', '--batch-size', default=8)\n",
            'memplan probe t.py --command "python t.py ... --batch-size {micro_batch_size}"',
        ),
        ("run.sh", "python t.py --batch-size 8\n", 'memplan probe run.sh --command "... {micro_batch_size}"'),
        ("x.yaml", "batch_size: 8\n", 'memplan probe x.yaml --command "python train.py ... {patched_config}"'),
    ],
)
def test_without_a_workload_the_command_that_needs_none_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_of(tmp_path, text, name=name)
    with pytest.raises(ConfigError) as error:
        _ = config.workload
    assert command in str(error.value)


def test_without_a_workload_a_batch_of_all_replicas_stays_one_in_the_command(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("p.add_argument('--global-batch-size', default=256)\n")
    keys = {"micro_batch_size": "global_batch_size", "global_batch_size": "global_batch_size"}
    with pytest.raises(ConfigError) as error:
        _ = read_config(tmp_path / "t.py", knob_keys=keys).workload
    assert "--global-batch-size {global_batch_size}" in str(error.value)


def test_a_config_of_mmengine_needs_no_workload_of_its_own_and_may_have_one(tmp_path: Path) -> None:
    config = config_of(tmp_path, "train_dataloader = dict(batch_size=4)\n", name="x.py")
    assert config.workload.target == "memplan.integrations.mmengine:make_workload"
    (tmp_path / "pyproject.toml").write_text('[tool.memplan]\nworkload = "m:f"\n')
    assert read_config(tmp_path / "x.py").workload.target == "m:f"


@pytest.mark.parametrize(
    ("section", "part"),
    [
        ({"worklod": "a:b"}, "no memplan option 'worklod'.*did you mean workload"),
        ({"max_util": "high"}, "memplan.max_util='high' is not understood"),
        ({"max_util": 80}, "memplan.max_util=80 is not understood; give a number from 0 to 1, such as 0.8"),
        ({"knobs": "data.n"}, "memplan.knobs='data.n' is not understood"),
        ({"loader": "yes"}, r"memplan.loader='yes' is not understood.*give true or false"),
        ("a:b", "memplan = 'a:b' is not a section"),
    ],
)
def test_a_bad_option_is_named(tmp_path: Path, section: object, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        options_of(tmp_path / "x.py", {"memplan": section})


def test_an_option_that_is_null_is_not_set(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.memplan]\nbudget = "2GiB"\n')
    options = options_of(tmp_path / "x.yaml", {"memplan": {"precision": None, "budget": None}})
    assert (options.precision, options.budget) == (None, "2GiB")


def test_a_broken_project_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool\n")
    with pytest.raises(ConfigError, match=r"pyproject.toml: the project file cannot be read"):
        options_of(tmp_path / "x.py", {})


def test_an_unknown_format_offers_the_near_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config format 'plain-yml'.*did you mean plain-yaml"):
        config_of(tmp_path, "a: 1\n", format_name="plain-yml")
