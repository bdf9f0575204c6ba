"""Sharding a model over replicas of which only one runs, in a process group whose collectives move nothing."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch.distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from memplan.errors import WorkloadError
from memplan.torch_releases import release_of
from memplan.training.half_precision import autocast
from memplan.training.workload_contract import name_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import nn

    from memplan.recipe import Recipe
    from memplan.workload import Workload
_SUMS_ARE_WRITTEN = release_of(torch.__version__) >= (2, 13)  # by PyTorch's stand-in for a process group


def join_absent_replicas(world_size: int, device_type: str) -> None:
    """Make this process the first of several replicas, for the rest of its life; the others need not run.

    Its process group is PyTorch's own stand-in (``torch.testing._internal.distributed.fake_pg``), with which PyTorch
    tests what one of many ranks does: a collective returns at once. Blocks that NCCL takes are not among its own.

    Args:
        world_size: how many replicas there are.
        device_type: where meshes of devices lie, whatever kind of device they are asked for; on the CPU wrappers of
            the first FSDP do, too.
    """
    from torch.testing._internal.distributed import fake_pg  # noqa: PLC0415 - registers the stand-in

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=world_size)
    if not _SUMS_ARE_WRITTEN:
        _write_scattered_sums()
    make, place = DeviceMesh.__init__, device_type

    def init(made: DeviceMesh, /, device_type: str, *args: Any, **kwargs: Any) -> None:  # noqa: ARG001 - named by callers
        make(made, place, *args, **kwargs)

    DeviceMesh.__init__ = init  # type: ignore[assignment, method-assign]  # by which every mesh is made
    if device_type == "cpu":
        _wrap_on_the_cpu()


def _write_scattered_sums() -> None:
    """Let what a replica gets of a sum be its own part of it, which the stand-in leaves unwritten (torch 2.9 and 2.11).

    Gradients of shards would be what lay there in memory, which may be no numbers.
    """
    scatter = torch.distributed.reduce_scatter_tensor

    @functools.wraps(scatter)
    def write_and_scatter(output: torch.Tensor, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - named by callers
        output.copy_(input.view(-1)[: output.numel()].view_as(output))
        return scatter(output, input, *args, **kwargs)

    torch.distributed.reduce_scatter_tensor = write_and_scatter


def _wrap_on_the_cpu() -> None:
    """Let wrappers of the first FSDP be made on the CPU, which it refuses unless asked; the first replica sends all."""
    wrap = FullyShardedDataParallel.__init__
    changed = {"device_id": torch.device("cpu"), "sync_module_states": False}

    def init(wrapper: FullyShardedDataParallel, *args: Any, **kwargs: Any) -> None:
        wrap(wrapper, *args, **{**kwargs, **changed})

    FullyShardedDataParallel.__init__ = init  # type: ignore[assignment, method-assign]  # of those inside others, too


def autocast_of(workload: Workload, recipe: Recipe, device_type: str) -> AbstractContextManager[Any]:
    """Return the context of the forward pass and the loss; of no effect where what shards the model sets its types."""
    return nullcontext() if workload.spans_replicas else autocast(recipe.precision, device_type)


def begin_pass(model: nn.Module, workload: Workload, *, is_last: bool) -> None:
    """Let a sharded model know whether gradients are exchanged in this pass of a step."""
    if workload.defers_gradient_sync:
        for each in model.modules():
            if isinstance(each, FSDPModule):
                each.set_requires_gradient_sync(is_last, recurse=False)
            elif isinstance(each, FullyShardedDataParallel):
                each._sync_gradients = is_last  # type: ignore[assignment]  # noqa: SLF001 - its no_sync is a context


def clip_gradients(model: nn.Module, largest_norm: float, *, foreach: bool | None = None) -> None:
    """Clip the gradients by their norm, those of flat parameters by FSDP's own method.

    Args:
        model: the model.
        largest_norm: their largest norm.
        foreach: whether to use the multi-tensor path; None for PyTorch's own choice, which FSDP makes always.
    """
    if isinstance(model, FullyShardedDataParallel):
        model.clip_grad_norm_(largest_norm)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), largest_norm, foreach=foreach)


def is_sharded(model: nn.Module) -> bool:
    """Whether a parameter of the model is spread over several replicas."""
    if any(isinstance(each, DTensor) and each.device_mesh.size() > 1 for each in model.parameters()):
        return True
    handles = (each._handle for each in FullyShardedDataParallel.fsdp_modules(model))  # noqa: SLF001 - has no other name
    return any(each is not None and each.uses_sharded_strategy for each in handles)


def gathers_inside(model: nn.Module, function: Callable[..., Any]) -> bool:
    """Whether either FSDP may gather weights while a function of the model runs, which it does not in a forward."""
    sharded = [each for each in model.modules() if isinstance(each, FSDPModule | FullyShardedDataParallel)]
    own = (each.module if isinstance(each, FullyShardedDataParallel) else each for each in sharded)
    return any(each.forward != function for each in own)


def offloads_shards(model: nn.Module) -> bool:
    """Whether FSDP keeps shards on the host between steps (``CPUOffloadPolicy``)."""
    states = (each._get_fsdp_state() for each in model.modules() if isinstance(each, FSDPModule))  # noqa: SLF001 - has no other name
    groups = (group for state in states for group in _parameter_groups(state) if group is not None)
    return any(each.offload_to_cpu for group in groups for each in group.fsdp_params)


def _parameter_groups(state: Any) -> list[Any]:
    several: list[Any] | None = getattr(state, "_fsdp_param_groups", None)  # from torch 2.12 on
    return [state._fsdp_param_group] if several is None else several  # noqa: SLF001 - as above


def shard_model(model: nn.Module, shard: Callable[[nn.Module, Recipe], Any], recipe: Recipe) -> nn.Module:
    """Let the workload's function shard a model, in place or by a wrapper of the first FSDP, and return it.

    Raises:
        WorkloadError: it returns another module, or wrappers of the first FSDP that offload their shards.
    """
    returned = shard(model, recipe)
    made = model if returned is None else returned
    if made is not model and not isinstance(made, FullyShardedDataParallel):
        kind = type(returned).__name__
        raise WorkloadError(
            f"the workload's shard function {name_of(shard)} returned a {kind} in place of the model",
            hint="shard the model in place, as torch.distributed.fsdp.fully_shard does, or return what the first FSDP "
            "makes of it, a FullyShardedDataParallel",
        )
    if any(each.cpu_offload.offload_params for each in FullyShardedDataParallel.fsdp_modules(made)):
        raise WorkloadError(
            f"the workload's shard function {name_of(shard)} returned wrappers with CPUOffload(offload_params=True)",
            hint="leave their shards on the card; of offloading, that of fully_shard is tried",
        )
    return made
