"""A LightningModule that its Trainer's strategy shards, by Lightning's own code.

``FSDPStrategy`` wraps it by the first FSDP and runs its steps through the wrapper, under autocast besides where the
precision is mixed; under ``ModelParallelStrategy`` the module shards itself by FSDP2, in ``configure_model``.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import enable_wrap

from memplan.configs.precision_words import LIGHTNING_WORDS
from memplan.errors import WorkloadError
from memplan.integrations.framework_step import RUN_AS_IT_IS
from memplan.recipe import Precision
from memplan.training.half_precision import autocast

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import nn

    from memplan.integrations.parcels import Parcel
    from memplan.recipe import Recipe


class LightningSharding:
    """What a Trainer's strategy does to a module.

    Args:
        strategy: an ``FSDPStrategy`` or ``ModelParallelStrategy`` that no Trainer has used, packed.
        by_module: whether it leaves it to the module to shard itself, as a ``ModelParallelStrategy`` does.
        num_nodes: over how many machines the replicas are spread.
    """

    def __init__(self, strategy: Parcel, *, by_module: bool, num_nodes: int) -> None:
        self._packed = strategy
        self._by_module = by_module
        self._num_nodes = num_nodes
        self._precision = Precision.FP32
        self._strategy: Any = None

    @property
    def defers_gradient_sync(self) -> bool:
        """Whether gradients are exchanged once a step: of what has a ``no_sync``, which modules of FSDP2 lack."""
        return not self._by_module

    def configure(self, module: Any) -> None:
        """Run ``configure_model`` before the module is sharded, unless it is what shards.

        Raises:
            WorkloadError: there it wraps layers by itself, or a module that it shards has no parameters before.
        """
        if not self._by_module:
            with enable_wrap(wrapper_cls=_refuse_to_wrap):
                module.configure_model()
        elif next(module.parameters(), None) is None:
            raise WorkloadError(
                f"{type(module).__name__} has no parameters before configure_model, which shards it",
                hint="make its layers in __init__, and let configure_model only shard them",
            )

    def shard(self, module: Any, recipe: Recipe) -> nn.Module:
        """Shard a module as the strategy does when a Trainer sets it up, and return what a step runs."""
        self._precision = recipe.precision
        strategy = self._strategy = self._packed.opened()
        on_card = torch.cuda.is_available()
        place = torch.device("cuda", torch.cuda.current_device()) if on_card else torch.device("cpu")
        strategy.parallel_devices = [place]
        if self._by_module:
            module._device_mesh = self._mesh_of(strategy, place)  # noqa: SLF001 - as the strategy does
            module.configure_model()
            return module  # type: ignore[no-any-return]  # a LightningModule is a Module
        strategy.precision_plugin = type(strategy.precision_plugin)(LIGHTNING_WORDS.get(recipe.precision, "32-true"))
        sizes = strategy.kwargs.get("device_mesh")
        if isinstance(sizes, tuple):
            strategy.kwargs["device_mesh"] = init_device_mesh(place.type, sizes)
        return strategy._setup_model(module)  # type: ignore[no-any-return]  # noqa: SLF001 - its ``setup`` needs a Trainer

    def _mesh_of(self, strategy: Any, place: torch.device) -> Any:
        replicas = torch.distributed.get_world_size()
        sizes = (strategy._data_parallel_size, strategy._tensor_parallel_size)  # noqa: SLF001 - public nowhere
        automatic = (self._num_nodes, replicas // self._num_nodes)
        data, tensor = (other if size == "auto" else size for size, other in zip(sizes, automatic, strict=True))
        if data * tensor != replicas:
            raise WorkloadError(
                f"data_parallel_size={data} times tensor_parallel_size={tensor} are not {replicas} replicas",
                hint="say in num_nodes and devices, or in world_size, how many there are",
            )
        return init_device_mesh(place.type, (data, tensor), mesh_dim_names=("data_parallel", "tensor_parallel"))

    def run(self, model: nn.Module, name: str, arguments: tuple[Any, ...]) -> Any:
        """Run one of the module's steps as the strategy does."""
        module: Any = module_in(model)
        with self._autocast(model):
            if module is model:
                return getattr(module, name)(*arguments)
            return self._strategy._forward_redirection(model, module, name, *arguments)  # noqa: SLF001 - its ``training_step`` needs a Trainer

    def _autocast(self, model: nn.Module) -> AbstractContextManager[Any]:
        place = next((each.device.type for each in model.parameters()), None)
        return nullcontext() if place is None else autocast(self._precision, place)


def module_in(model: nn.Module) -> nn.Module:
    """Return the LightningModule, which may be wrapped."""
    return model.module if isinstance(model, FullyShardedDataParallel) else model


def _refuse_to_wrap(module: nn.Module, **_: Any) -> nn.Module:
    raise WorkloadError(
        f"configure_model wraps layers such as {type(module).__name__} one by one",
        hint=f"let FSDPStrategy(auto_wrap_policy=...) say which layers are wrapped, or {RUN_AS_IT_IS}",
    )
