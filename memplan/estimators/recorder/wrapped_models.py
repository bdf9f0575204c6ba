"""Model wrappers that change memory use: those that are refused, notes on the others, and names without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.errors import WorkloadError

if TYPE_CHECKING:
    from torch import nn

_SHARDING = {"FullyShardedDataParallel", "FSDPModule"}
_WRAPPED = "_fsdp_wrapped_module"  # what a wrapper of the first FSDP calls the module inside
_GATHERING = (
    "DataParallel is traced as on one visible card, which runs the whole micro-batch; of several cards the first also "
    "gathers what the others return; start one process a card instead, with torchrun"
)


def refuse_wrappers(model: nn.Module) -> None:
    """Refuse a model whose wrapper needs several processes.

    Raises:
        WorkloadError: it is sharded, or wrapped for data-parallel training.
    """
    if _has_class(model, _SHARDING):
        raise WorkloadError(
            "the workload's model factory returned a sharded model",
            hint="return the model as it is before FSDP, and shard it in the workload's shard function",
        )
    if _has_class(model, {"DistributedDataParallel"}):
        raise WorkloadError(
            "the workload's model factory returned a DistributedDataParallel",
            hint="return the model inside it: replicas are counted all the same",
        )


def wrapper_notes(model: nn.Module) -> tuple[str, ...]:
    """Say what the trace does not count of a model's wrappers, one phrase each."""
    return (_GATHERING,) if _has_class(model, {"DataParallel"}) else ()


def name_without_wrappers(name: str) -> str:
    """Return the path that a module had before it and others were wrapped by the first FSDP."""
    return ".".join(each for each in name.split(".") if each != _WRAPPED)


def _has_class(model: nn.Module, names: set[str]) -> bool:
    return any(kind.__name__ in names for module in model.modules() for kind in type(module).__mro__)
