"""TrainingArguments of a single step in a process of its own, made of those of a whole training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import nn

_SINGLE_LOADER: dict[str, Any] = {
    "dataloader_num_workers": 0,
    "dataloader_persistent_workers": False,
    "dataloader_prefetch_factor": None,
    "dataloader_drop_last": False,
}
# What a single step in its own process does not need.
_PLAIN_ARGUMENTS: dict[str, Any] = {
    "use_cpu": True,  # memplan moves model and batch itself
    "bf16": False,  # and casts
    "fp16": False,
    "tf32": None,
    "bf16_full_eval": False,
    "fp16_full_eval": False,
    "torch_compile": False,
    "torch_compile_backend": None,
    "torch_compile_mode": None,
    "deepspeed": None,  # see TrainerParts
    "fsdp": None,  # see TrainerStep.shard
    "fsdp_config": None,
    "report_to": [],
    "push_to_hub": False,
    "save_strategy": "no",
    "eval_strategy": "no",
    "load_best_model_at_end": False,
    "dataset_num_proc": None,  # of TRL
    **_SINGLE_LOADER,
    "disable_tqdm": True,
    "output_dir": None,
    "logging_dir": None,
    "run_name": None,
}


def loader_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those TrainingArguments of a whole training that its loader has and a single step has not."""
    return {name: values[name] for name in _SINGLE_LOADER if name in values}


def step_arguments(values: Mapping[str, Any], *, fused: bool = False) -> dict[str, Any]:
    """Return the TrainingArguments of a single step from those of a whole training.

    Args:
        values: those of the training.
        fused: whether a fused AdamW takes the place of their optimizer.
    """
    plain = {name: value for name, value in _PLAIN_ARGUMENTS.items() if name in values}
    return {**values, **plain, **({"optim": "adamw_torch_fused"} if fused else {})}


def class_on_device_of(models: Sequence[nn.Module], arguments_class: type[Any]) -> type[Any]:
    """Return a class of arguments whose device is the one the model is on, once there is one."""

    class Arguments(arguments_class):
        @property
        def device(self) -> torch.device:
            trainers = super().device  # asking sets up what the Trainer knows of its processes
            return next((each.device for model in models for each in model.parameters()), trainers)

    return Arguments
