"""Configs that shard the model over the replicas, by ZeRO or FSDP: of itself memplan knows whole replicas only.

Keys are those of DeepSpeed's configuration reference, transformers' TrainingArguments, accelerate's launch files,
axolotl, Lightning, mmengine and torchtitan.
"""

from __future__ import annotations

import re
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from memplan.configs.keys import get

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_NUMBERS = {  # key -> the number that shards nothing; of torchtitan's, -1 is as many as there are
    "zero_optimization.stage": 0,
    "deepspeed_config.zero_stage": 0,
    "parallelism.data_parallel_shard_degree": 1,
    "parallelism.tensor_parallel_degree": 1,
}
_SWITCHES = ("fsdp", "fsdp_version")
_STRATEGIES = (
    "distributed_type",  # DEEPSPEED shards by its stage alone
    "strategy",
    "strategy.class_path",
    "strategy.type",
    "trainer.strategy",
    "trainer.strategy.class_path",
    "trainer.strategy._target_",
    "model_wrapper_cfg.type",
)
_SHARDING = re.compile(r"fsdp|fullysharded|deepspeed|model_?parallel|colossalai", re.IGNORECASE)


def remarks_on_sharding(configs: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Say which setting shards the model, and what that means for memplan's figures.

    Args:
        configs: values of a config, and of its companions.
    """
    return tuple(
        f"{setting} shards model or optimizer over the replicas: memplan's figures are of a whole replica, which needs "
        "more, unless the workload shards it likewise, by its shard function or its deepspeed configuration; "
        'memplan probe --command "..." measures the training as it is launched'
        for setting in islice(chain.from_iterable(map(_settings, configs)), 1)
    )


def _settings(values: Mapping[str, Any]) -> Iterator[str]:
    for key, shards_nothing in _NUMBERS.items():
        number = get(values, key)
        if isinstance(number, int) and number != shards_nothing:
            yield f"{key}={number}"
    yield from (key for key in _SWITCHES if get(values, key))
    for key in _STRATEGIES:
        name = get(values, key)
        if isinstance(name, str) and _SHARDING.search(name) and name != "DEEPSPEED":
            yield f"{key}={name}"
