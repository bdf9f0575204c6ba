"""DeepSpeed's engine, which shards optimizer states, gradients and weights (ZeRO), and runs each pass and each step.

Weights are half, and their masters and the optimizer's states single, in bf16 and fp16; there is no autocast. The
engine accumulates, scales, clips and zeroes gradients by itself. Imports torch; child processes only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from memplan.errors import MissingExtraError
from memplan.training.deepspeed_config import engine_config

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from memplan.recipe import Recipe
    from memplan.workload import Workload

_BETWEEN_PROCESSES = "deepspeed_shm_comm"  # an operator of DeepSpeed's on the CPU


def make_engine(
    model: nn.Module,
    optimizer: Optimizer,
    workload: Workload,
    recipe: Recipe,
    *,
    on_card: bool,
    card_is_there: bool = True,
) -> Any:
    """Let DeepSpeed make its engine in the process group of the replicas; the model computes within it from then on.

    Args:
        model: the model on the device, its weights in the engine's type; where these arrive sharded they are on the
            host yet.
        optimizer: that of its parameters.
        workload: its configuration.
        recipe: its sizes and precision.
        on_card: whether the device is a card.
        card_is_there: whether its driver may be asked how much memory is free.

    Raises:
        MissingExtraError: DeepSpeed is not installed.
        WorkloadError: the recipe's precision is none of DeepSpeed's.
    """
    os.environ.setdefault("LOCAL_RANK", "0")
    try:
        import deepspeed  # noqa: PLC0415 - an extra, which takes seconds to import
        from deepspeed.accelerator import cuda_accelerator, set_accelerator  # noqa: PLC0415 - as above
        from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        if error.name != "deepspeed":
            raise
        raise MissingExtraError(
            "the workload has a DeepSpeed configuration, and deepspeed is not installed",
            hint="install it with: pip install 'memplan[deepspeed]'",
        ) from error
    # another may have been found at its import
    set_accelerator(cuda_accelerator.CUDA_Accelerator() if on_card else CPU_Accelerator())
    if not card_is_there:
        cuda_accelerator.pynvml = None
    # it would be compiled, for replicas that are not there
    deepspeed.ops.__compatible_ops__[_BETWEEN_PROCESSES] = False
    given = workload.deepspeed or {}
    config = engine_config(given, recipe, hidden_size=hidden_size(model), grad_clip_norm=workload.grad_clip_norm)
    if workload.weights_arrive_sharded:
        # only weights made within keep no gathered copies until the backward pass, to DeepSpeed before 0.19.4
        with deepspeed.zero.Init(module=model, config_dict_or_path=config):
            pass
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
    return engine


def parts_of(parameter: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a parameter, which is gathered or empty where weights are sharded, and this replica's part of it then."""
    part: torch.Tensor | None = getattr(parameter, "ds_tensor", None)
    return (parameter,) if part is None else (parameter, part)


def hidden_size(model: nn.Module) -> int | None:
    """Return the size that transformers fills buckets in by, of its own models; None where there is none."""
    of_model = getattr(model, "config", None)
    for config in (of_model, getattr(of_model, "text_config", None)):
        size = getattr(config, "hidden_size", None) or max(getattr(config, "hidden_sizes", ()), default=None)
        if size is not None:
            return int(size)
    return None
