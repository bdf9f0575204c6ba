"""The benchmark over public configs: what it proves of one config, and that it sees what should not have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

AXOLOTL = """\
base_model: net
micro_batch_size: 4  # 4 fit
learning_rate: 0.0002
gradient_checkpointing: offload
bf16: false
datasets:
- path: data
"""
DEEPSPEED = '{"train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": false}, "zero_optimization": {"stage": 2}}\n'
BEFORE = {
    "train_dataloader": {"batch_size": 4, "num_workers": 2},
    "optim_wrapper": {"type": "OptimWrapper", "optimizer": {"lr": 0.1}},
    "train_cfg": {"max_iters": 101},
}
AFTER = {
    "train_dataloader": {"batch_size": 8, "num_workers": 2},
    "optim_wrapper": {"type": "AmpOptimWrapper", "optimizer": {"lr": 0.2}},
    "train_cfg": {"max_iters": 50},
}


@pytest.fixture
def configs(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("configs")


@pytest.mark.parametrize(("name", "text", "kind"), [("x.yml", AXOLOTL, "axolotl"), ("ds.json", DEEPSPEED, "deepspeed")])
def test_a_config_is_patched_by_each_tool_and_left_as_it_was(
    configs: ModuleType, tmp_path: Path, name: str, text: str, kind: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert configs.outcome_of(tmp_path / name) == ("verified", "", kind)
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text(encoding="utf-8") == text


def test_a_script_is_loaded_by_bash_and_what_it_names_is_looked_at_too(configs: ModuleType, tmp_path: Path) -> None:
    script = "B=4\nrm -rf kept\naccelerate launch --config_file acc.yaml t.py --batch_size $B --lr 0.1 >> log\n"
    (tmp_path / "x.sh").write_text(script, encoding="utf-8")
    (tmp_path / "acc.yaml").write_text("distributed_type: 'NO'\nmixed_precision: 'no'\n", encoding="utf-8")
    (tmp_path / "kept").mkdir()
    assert configs.config_loaders.load(tmp_path / "x.sh", "launch-script") == {"batch_size": "4", "lr": "0.1"}
    assert configs.outcome_of(tmp_path / "x.sh") == ("verified", "", "launch-script")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["acc.yaml", "kept", "x.sh"]
    before = [("launch-script", {"batch_size": "4"}), ("accelerate", {"mixed_precision": "no", "num_machines": 1})]
    after = [("launch-script", {"batch_size": "8"}), ("accelerate", {"mixed_precision": "fp16", "num_machines": 2})]
    assert configs.faults(before, after) == ["num_machines: 1 -> 2"]


def test_what_a_launcher_is_told_is_looked_at_too(configs: ModuleType, tmp_path: Path) -> None:
    script = "accelerate launch --mixed_precision fp16 train.py --batch_size 4 --lr 0.1\n"
    (tmp_path / "x.sh").write_text(script, encoding="utf-8")
    told = configs.config_loaders.load(tmp_path / "x.sh", "launch-script")
    assert told == {"batch_size": "4", "lr": "0.1", "accelerate_launch": {"mixed_precision": "fp16"}}
    assert configs.outcome_of(tmp_path / "x.sh") == ("verified", "", "launch-script")


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("train_dataloader", {"batch_size": 8, "num_workers": 3}, "train_dataloader.num_workers: 2 -> 3"),
        ("train_dataloader", BEFORE["train_dataloader"], "no double value differs"),
        ("train_cfg", {"max_iters": 51}, "train_cfg.max_iters: 101 -> 51"),
        ("optim_wrapper", {"type": "OptimWrapper", "optimizer": {"lr": 0.2}}, "no precision value differs"),
        ("extra", 1, "extra: None -> 1"),
    ],
)
def test_whatever_else_differs_is_a_fault(configs: ModuleType, key: str, value: object, fault: str) -> None:
    assert configs.faults([("mmengine", BEFORE)], [("mmengine", AFTER)]) == []
    assert configs.faults([("mmengine", BEFORE)], [("mmengine", {**AFTER, key: value})]) == [fault]


def test_results_are_kept_so_that_a_run_can_go_on(configs: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "tree" / "_base_").mkdir(parents=True)
    for name in ("a.yml", "b.yml", "_base_/c.yml"):
        (tmp_path / "tree" / name).write_text(AXOLOTL, encoding="utf-8")
    results = tmp_path / "results.jsonl"
    results.write_text('{"corpus": "x", "path": "a.yml", "outcome": "WRONG", "reason": "", "format": ""}\n')
    options = configs.argparse.Namespace(results=results, suffix=None, within=None, every=1, beside=[])
    configs.run("x", tmp_path / "tree", options)
    lines = configs.results_in(results)
    assert [(each["path"], each["outcome"]) for each in lines] == [("a.yml", "WRONG"), ("b.yml", "verified")]
