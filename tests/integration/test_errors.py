"""Whatever is wrong with the input, the answer is one clear line, the right status, and an untouched disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.conftest import CONFIG, MAPS, NETWORK

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.conftest import Ended

WORKLOAD = ("--workload", "net:make_workload", *MAPS)
# The budget is little: it is free whatever else the machine runs, and every refusal comes before any of it is used.
ON_CPU = ("--device", "cpu", "--budget", "100MiB", "--precision", "fp32")
RAISING_LINE = NETWORK.splitlines().index("def make_workload(config):") + 2
RAISED = f"net.py:{RAISING_LINE}: workload 'net:make_workload' raised: KeyError: 'lost'"


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture
def refused(command: Callable[..., Ended]) -> Callable[..., str]:
    """What runs a command that must fail with one line on stderr and change nothing, and returns the line."""

    def run(project: Path, *arguments: str) -> str:
        before = files_of(project)
        ended = command(*arguments, cwd=project)
        assert ended.status == 2, ended.err
        assert files_of(project) == before
        lines = [line for line in ended.err.splitlines() if line.startswith("memplan: ")]
        assert len(lines) == 1, ended.err
        assert "Traceback" not in ended.err
        return lines[0]

    return run


def test_a_yaml_config_with_a_syntax_error_names_file_and_line(project: Path, refused: Callable[..., str]) -> None:
    (project / "config.yaml").write_text("data: {batch_size: 2\n")
    assert "config.yaml:2" in refused(project, "probe", "config.yaml", *WORKLOAD, *ON_CPU)


def test_a_python_config_with_a_syntax_error_names_file_and_line(project: Path, refused: Callable[..., str]) -> None:
    (project / "config.py").write_text("data = dict(samples_per_gpu=2)\noptimizer = dict(type='SGD'\n")
    assert "config.py:2" in refused(project, "probe", "config.py", *ON_CPU)


def test_a_missing_base_is_named(project: Path, refused: Callable[..., str]) -> None:
    (project / "config.py").write_text("_base_ = ['./nowhere.py']\ndata = dict(samples_per_gpu=2)\n")
    assert "nowhere.py" in refused(project, "probe", "config.py", *ON_CPU)


def test_a_cyclic_base_is_named(project: Path, refused: Callable[..., str]) -> None:
    (project / "a.py").write_text("_base_ = ['./b.py']\ndata = dict(samples_per_gpu=2)\n")
    (project / "b.py").write_text("_base_ = ['./a.py']\n")
    line = refused(project, "probe", "a.py", *ON_CPU)
    assert "a.py" in line
    assert "b.py" in line


def test_a_config_that_is_not_there_is_named(project: Path, refused: Callable[..., str]) -> None:
    assert "missing.yaml" in refused(project, "probe", "missing.yaml", *WORKLOAD, *ON_CPU)


def test_an_unknown_workload_module_is_named_with_where_it_was_looked_for(
    project: Path, refused: Callable[..., str]
) -> None:
    line = refused(project, "probe", "config.yaml", "--workload", "nets:make_workload", *MAPS, *ON_CPU)
    assert "there is no module 'nets'" in line
    assert str(project) in line


def test_an_unknown_workload_function_is_named(project: Path, refused: Callable[..., str]) -> None:
    line = refused(project, "probe", "config.yaml", "--workload", "net:make", *MAPS, *ON_CPU)
    assert f"module 'net' has no function 'make'; it is {project}/net.py; use one of " in line
    assert line.endswith("make_workload")


def test_a_function_that_returns_nothing_is_told_what_to_return(project: Path, refused: Callable[..., str]) -> None:
    (project / "net.py").write_text("def make_workload(config):\n    pass\n")
    line = refused(project, "estimate", "config.yaml", *WORKLOAD, *ON_CPU)
    assert "returned a NoneType, not a memplan.Workload; return memplan.Workload(model=" in line


def test_a_module_that_the_workload_lacks_is_named_with_the_line_that_imports_it(
    project: Path, refused: Callable[..., str]
) -> None:
    (project / "net.py").write_text(f"import no_such_package\n{NETWORK}")
    line = refused(project, "estimate", "config.yaml", *WORKLOAD, *ON_CPU)
    assert "net.py:1: importing workload 'net:make_workload' failed: ModuleNotFoundError" in line
    assert "'no_such_package'" in line


def test_a_mapped_key_that_is_not_in_the_config_is_named_with_its_neighbours(
    project: Path, refused: Callable[..., str]
) -> None:
    line = refused(
        project, "probe", "config.yaml", "--workload", "net:make_workload", "--map", "micro_batch_size=data.batchsize"
    )
    assert "data.batchsize" in line
    assert "data.batch_size" in line


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def make_workload(config):", "def make_workload(config):\n    raise KeyError('lost')", RAISED),
        (".square().mean()", ".square()", "returned a tensor of shape (2, 8192, 2); return one number"),
        ("torch.randn(micro_batch_size, 8192", "torch.randn(3, 8192", "ignores"),
        ("nn.Linear(32, 2))", "nn.Linear(31, 2))", "but got [16384, 32] X [31, 2]"),
    ],
    ids=["raises", "loss is not a scalar", "batch ignores its argument", "model fails"],
)
def test_a_workload_that_breaks_its_contract_is_told_so(
    project: Path, old: str, new: str, said: str, refused: Callable[..., str]
) -> None:
    assert old in NETWORK
    (project / "net.py").write_text(NETWORK.replace(old, new))
    assert said in refused(project, "probe", "config.yaml", *WORKLOAD, *ON_CPU)


@pytest.mark.parametrize("value", ["0", "1.2", "-0.5", "nan"])
def test_an_upper_edge_out_of_range_is_refused(project: Path, value: str, refused: Callable[..., str]) -> None:
    assert "max-util" in refused(project, "probe", "config.yaml", *WORKLOAD, *ON_CPU, "--max-util", value)


def test_an_unknown_card_is_refused_with_the_nearest_names(project: Path, refused: Callable[..., str]) -> None:
    line = refused(project, "estimate", "config.yaml", *WORKLOAD, "--device", "rtx-3900")
    assert "rtx-3900" in line
    assert "rtx-3090" in line


def test_an_option_that_does_not_exist_is_a_usage_error(project: Path, refused: Callable[..., str]) -> None:
    assert "--max-utilisation" in refused(project, "probe", "config.yaml", "--max-utilisation", "0.8")


def test_a_report_without_any_run_says_how_to_make_one(project: Path, refused: Callable[..., str]) -> None:
    assert "there are no runs" in refused(project, "report")
    assert not (project / ".memplan").exists()


def test_a_store_that_cannot_be_written_is_one_line(project: Path, refused: Callable[..., str]) -> None:
    (project / "taken").write_text("a file")
    line = refused(project, "probe", "config.yaml", *WORKLOAD, *ON_CPU, "--store", "taken")
    assert "taken" in line


def test_the_config_is_the_same_afterwards(project: Path, command: Callable[..., Ended]) -> None:
    command("estimate", "config.yaml", *WORKLOAD, "--device", "24GiB", cwd=project)
    assert (project / "config.yaml").read_text() == CONFIG


def test_a_budget_above_the_memory_that_is_free_is_refused(project: Path, refused: Callable[..., str]) -> None:
    line = refused(project, "probe", "config.yaml", *WORKLOAD, "--device", "cpu", "--budget", "500TiB")
    assert "budget 500.0 TiB is more than the" in line


def test_a_precision_that_the_config_cannot_say_is_not_taken_for_too_large(
    project: Path, command: Callable[..., Ended]
) -> None:
    ended = command("probe", "config.yaml", *WORKLOAD, "--device", "rtx-3090", "--precision", "bf16", cwd=project)
    assert ended.status == 2
    assert "memplan: bf16 cannot be used: training.use_amp=False has no way to say bf16" in ended.err


def test_what_does_not_fit_a_card_and_what_cannot_be_used_there_are_told_apart(
    project: Path, command: Callable[..., Ended]
) -> None:
    on_card = ("--device", "rtx-3090", "--budget", "100MiB", "--precision", "fp32,bf16")
    ended = command("probe", "config.yaml", *WORKLOAD, *on_card, cwd=project)
    assert ended.status == 3
    assert "fp32: micro-batch 1 needs about" in ended.err
    assert "; bf16 cannot be used: training.use_amp=False has no way to say bf16" in ended.err


def test_a_global_batch_is_refused_where_the_config_has_no_accumulation(
    project: Path, refused: Callable[..., str]
) -> None:
    line = refused(project, "probe", "config.yaml", *WORKLOAD, *ON_CPU, "--global-batch", "8")
    assert "--map accumulation_steps=KEY); a global batch is held by accumulation" in line
