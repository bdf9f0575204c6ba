"""`memplan estimate` as a user runs it: tables, what would save memory, and the snapshot for PyTorch's visualiser."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from torch.cuda import _memory_viz

from memplan.units import MIB
from tests.integration.conftest import MAPS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.conftest import Ended

WORKLOAD = ("--workload", "net:make_workload", *MAPS)


def test_one_recipe_with_its_savings_and_its_timeline(project: Path, command: Callable[..., Ended]) -> None:
    ended = command(
        "estimate", "config.yaml", *WORKLOAD, "--device", "rtx-3090", "--batch-size", "16", "--snapshot", "out.pickle",
        "--json", cwd=project,
    )  # fmt: skip
    assert ended.status == 0, ended.err
    (estimate,) = ended.document["estimates"]
    savings = {each["change"]: each for each in ended.document["savings"]}
    assert savings["bf16 autocast"]["saved_bytes"] >= 2 * MIB  # the batch is kept twice, what follows it in half
    assert "offers no way" in savings["activation checkpointing"]["obstacle"]
    assert savings["fused optimizer"]["peak_process_bytes"] <= estimate["peak_process_bytes"]

    snapshot = pickle.loads((project / "out.pickle").read_bytes())
    held_bytes = sum(segment["total_size"] for segment in snapshot["segments"])
    assert held_bytes == estimate["peak_reserved_bytes"]
    assert "cudaMalloc" in _memory_viz.trace(snapshot)
    shown = {frame["name"] for entry in snapshot["device_traces"][0] for frame in entry["frames"]}
    assert {"aten.relu", "activations", "3"} <= shown  # operator, category, module
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<html" in plot(snapshot) or "<script" in plot(snapshot)


def test_the_largest_micro_batch_is_solved_for_the_band_and_for_the_card(
    project: Path, command: Callable[..., Ended]
) -> None:
    question = ("estimate", "config.yaml", *WORKLOAD, "--device", "4GiB", "--json")
    largest = command(*question, "--precision", "fp32,bf16", cwd=project).document["largest"]
    assert [(each["precision"], each["share"]) for each in largest] == [
        ("fp32", 0.8), ("fp32", 1.0), ("bf16", 0.8), ("bf16", 1.0),
    ]  # fmt: skip
    size = largest[0]["micro_batch_size"]
    estimates = command(*question, "--batch-size", f"{size},{size + 1}", cwd=project).document["estimates"]
    fits, fails = (each["peak_process_bytes"] for each in estimates)
    assert fits <= largest[0]["limit_bytes"] < fails


def test_cards_to_choose_between_are_compared_in_one_answer(project: Path, command: Callable[..., Ended]) -> None:
    question = ("estimate", "config.yaml", *WORKLOAD, "--precision", "fp32,bf16")
    document = command(*question, "--device", "t4, 4GiB,t4", "--json", cwd=project).document
    asked = [("t4", "fp32"), ("t4", "bf16"), ("4GiB", "fp32"), ("4GiB", "bf16")]
    assert [(each["device_name"], each["recipe"]["precision"]) for each in document["estimates"]] == asked
    assert [(each["device_name"], each["precision"]) for each in document["largest"][::2]] == asked
    assert "t4 has no bf16 units, and plans for it leave bf16 out" in document["notes"]
    alone = command(*question, "--device", "4GiB", "--json", cwd=project).document
    assert alone["estimates"] == document["estimates"][2:]


def test_a_snapshot_shows_one_device(project: Path, command: Callable[..., Ended]) -> None:
    ended = command("estimate", "config.yaml", *WORKLOAD, "--device", "t4,l4", "--snapshot", "out.pickle", cwd=project)
    assert "a snapshot shows one device, and 2 are asked for; name one --device" in ended.err
    assert not (project / "out.pickle").exists()


def test_the_number_of_replicas_is_taken_from_the_command_line(project: Path, command: Callable[..., Ended]) -> None:
    question = ("estimate", "config.yaml", *WORKLOAD, "--device", "rtx-3090", "--no-savings", "--json", "--world-size")
    (estimate,) = command(*question, "8", cwd=project).document["estimates"]
    assert estimate["recipe"]["world_size"] == 8
    assert "world_size=0 must be a whole number of at least 1" in command(*question, "0", cwd=project).out


def test_sizes_of_the_command_line_stand_in_for_a_micro_batch_that_the_config_does_not_set(
    project: Path, command: Callable[..., Ended]
) -> None:
    (project / "config.yaml").write_text("optimizer: {lr: 1.0e-3}\n")
    question = ("estimate", "config.yaml", *WORKLOAD[:2], "--device", "rtx-3090")
    ended = command(*question, "--batch-size", "8,16", "--json", cwd=project)
    assert [each["recipe"]["micro_batch_size"] for each in ended.document["estimates"]] == [8, 16]
    ended = command(*question, cwd=project)
    assert "sets no micro-batch size that memplan knows" in ended.err
    assert "memplan estimate needs none with --batch-size" in ended.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--device", "rtx-3090", "--batch-size", "8,16"), "a snapshot shows one recipe, and 2 are asked for"),
        (("--device", "cpu"), "a memory snapshot shows the CUDA allocator; choose a card with --device"),
    ],
    ids=["several recipes", "on the CPU"],
)
def test_a_snapshot_that_cannot_be_is_refused_before_anything_is_traced(
    project: Path, arguments: tuple[str, ...], complaint: str, command: Callable[..., Ended]
) -> None:
    ended = command("estimate", "config.yaml", *WORKLOAD, *arguments, "--snapshot", "out.pickle", cwd=project)
    assert (ended.status, ended.out) == (2, "")
    assert complaint in ended.err
    assert not (project / "out.pickle").exists()


def test_a_broken_model_is_told_with_the_users_own_line(project: Path, command: Callable[..., Ended]) -> None:
    network = project / "net.py"
    network.write_text(network.read_text().replace("nn.Linear(32, 2))", "nn.Linear(100, 2))"))
    ended = command("estimate", "config.yaml", *WORKLOAD, "--device", "rtx-3090", cwd=project)
    line = network.read_text().splitlines().index("        return model(images).square().mean()") + 1
    assert ended.status == 2
    assert f"net.py:{line}: the workload's loss" in ended.err


def test_what_a_config_left_open_is_said_before_the_failure_that_may_follow_from_it(
    project: Path, command: Callable[..., Ended]
) -> None:
    network, config = project / "net.py", project / "config.yaml"
    network.write_text(network.read_text().replace("nn.Linear(32, 2))", "nn.Linear(100, 2))"))
    config.write_text(f"{config.read_text()}max_iters: 9\n")
    ended = command("estimate", "config.yaml", *WORKLOAD, "--device", "rtx-3090", cwd=project)
    assert ended.status == 2
    assert ended.err.startswith("note: max_iters is left alone")
