"""Configs that shard the model: found by the keys of each ecosystem, and silent where they shard nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from memplan.configs import read_config
from memplan.configs.sharding_remarks import remarks_on_sharding

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        ({"zero_optimization": {"stage": 2}}, "zero_optimization.stage=2"),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}}, "deepspeed_config.zero_stage=3"),
        ({"distributed_type": "FSDP"}, "distributed_type=FSDP"),
        ({"fsdp": "full_shard auto_wrap"}, "fsdp"),
        ({"fsdp_version": 2}, "fsdp_version"),
        ({"trainer": {"strategy": "deepspeed_stage_2"}}, "trainer.strategy=deepspeed_stage_2"),
        (
            {"trainer": {"strategy": {"class_path": "lightning.pytorch.strategies.FSDPStrategy"}}},
            "trainer.strategy.class_path=lightning.pytorch.strategies.FSDPStrategy",
        ),
        ({"model_wrapper_cfg": {"type": "MMFullyShardedDataParallel"}}, "type=MMFullyShardedDataParallel"),
        ({"parallelism": {"data_parallel_shard_degree": -1}}, "parallelism.data_parallel_shard_degree=-1"),
    ],
    ids=str,
)
def test_what_shards_the_model_is_named(values: dict[str, Any], setting: str) -> None:
    (remark,) = remarks_on_sharding([{}, values])
    assert f"{setting} shards model or optimizer over the replicas" in remark


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"zero_optimization": {"stage": 0}},
        {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 0}},
        {"distributed_type": "MULTI_GPU", "fsdp": "", "fsdp_config": {}},
        {"trainer": {"strategy": "ddp"}},
        {"parallelism": {"data_parallel_shard_degree": 1, "tensor_parallel_degree": 1}},
    ],
    ids=str,
)
def test_whole_replicas_need_no_remark(values: dict[str, Any]) -> None:
    assert remarks_on_sharding([values]) == ()


def test_a_file_of_deepspeed_that_arguments_name_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 3}, "train_batch_size": "auto"}')
    path = tmp_path / "arguments.yaml"
    path.write_text("output_dir: out\nper_device_train_batch_size: 4\nlearning_rate: 1.0e-4\ndeepspeed: zero3.json\n")
    notes = read_config(path, workload_target="package:function").notes
    assert [note for note in notes if note.startswith("zero_optimization.stage=3 shards model or optimizer")]
