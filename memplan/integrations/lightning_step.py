"""A LightningModule and its data as a workload: what runs in the child processes that estimate and try a step.

The module is driven as Lightning's own loop drives it under automatic optimization: ``setup`` and ``configure_model``,
the batch-transfer hooks, ``training_step``, ``validation_step``, and the optimizer of ``configure_optimizers``, whose
gradients are zeroed between forward and backward pass (``Closure`` in Lightning's automatic.py). Not run: callbacks,
loggers, and the hooks around single steps (``on_train_batch_start``, ``on_before_zero_grad`` and the like).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from memplan.errors import WorkloadError
from memplan.integrations.borrowed_parameters import borrowed_parameters
from memplan.integrations.framework_step import RUN_AS_IT_IS, FrameworkStep
from memplan.integrations.largest_samples import largest_samples, number_of_samples
from memplan.integrations.lightning_sharding import module_in
from memplan.integrations.lightning_stand_in import set_torch_flags, trainer_stand_in, validating
from memplan.integrations.packed_batches import PackedBatch, packed
from memplan.integrations.resized_loaders import resized_loader
from memplan.training.skipped_initialisation import initialisation_skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from memplan.integrations.lightning_deepspeed import LightningDeepSpeed
    from memplan.integrations.lightning_sharding import LightningSharding
    from memplan.integrations.parcels import Parcel
    from memplan.recipe import Recipe
    from memplan.workload import Workload
    from memplan.worst_case import WorstBatches

_FRAMEWORKS = ("lightning.", "pytorch_lightning.")


class LightningStep(FrameworkStep):
    """The callables of a workload that trains a LightningModule.

    Args:
        module: the LightningModule, packed.
        data: the LightningDataModule or DataLoader, packed; None where the module has its own ``train_dataloader``.
        module_type: class of the module.
        batch_arg_name: attribute in which module or datamodule keep the batch size.
        settings: the Trainer's arguments that modules ask their trainer for.
        val_data: the DataLoader of the validation, packed; None where datamodule or module have their own.
        sharding: what the Trainer's strategy does to the module; None where every card holds the whole of it.
        deepspeed: what DeepSpeed's does; None for any other.
    """

    zero_grad_before_backward = True

    def __init__(
        self,
        module: Parcel,
        data: Parcel | None,
        *,
        module_type: type[nn.Module],
        batch_arg_name: str,
        settings: dict[str, Any],
        val_data: Parcel | None = None,
        sharding: LightningSharding | None = None,
        deepspeed: LightningDeepSpeed | None = None,
    ) -> None:
        self._module_type = module_type  # its modules are imported with the workload, before memory is counted
        self._packed_module = module
        self._packed_data = data
        self._packed_val_data = val_data
        self._batch_arg_name = batch_arg_name
        self._sharding = sharding
        self._deepspeed = deepspeed
        self._trainer = trainer_stand_in(settings)
        self._deterministic: bool | str | None = settings.get("deterministic")
        self._benchmark: bool | None = settings.get("benchmark")
        self._module: Any = None
        self._sharded: nn.Module | None = None
        self._source: Any = None
        self._loaders: Any = None
        self._largest: dict[int, WorstBatches] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the data up as the workload arrives, before memory is counted: on the CPU it is part of what is there."""
        self.__dict__.update(state)
        if self._packed_data is not None:
            self._data()

    def model(self) -> nn.Module:
        """Rebuild the module and set it up as ``Trainer.fit`` would.

        Raises:
            WorkloadError: ``configure_optimizers`` returns none or several optimizers.
        """
        set_torch_flags(deterministic=self._deterministic, benchmark=self._benchmark)
        module = self._packed_module.opened()
        module.trainer, self._sharded = self._trainer, None
        module.setup("fit")
        if self._sharding is None:
            module.configure_model()
        else:
            self._sharding.configure(module)
        self._configured_optimizer(module, module)
        self._module = module
        return module  # type: ignore[no-any-return]  # a LightningModule is a Module

    def workload(self, *, grad_clip_norm: float | None, evaluates: bool = False, ema: bool = False) -> Workload:
        """Return the workload of these callables, sharded where the strategy does so; as ``FrameworkStep`` has it."""
        found = super().workload(grad_clip_norm=grad_clip_norm, evaluates=evaluates, ema=ema)
        if self._deepspeed is not None:
            return self._deepspeed.added_to(found)
        if self._sharding is None:
            return found
        shard = functools.partial(self._shard, self._sharding)
        return replace(found, shard=shard, defers_gradient_sync=self._sharding.defers_gradient_sync)

    def _shard(self, sharding: LightningSharding, model: Any, recipe: Recipe) -> nn.Module:
        """Shard the module as the Trainer's strategy does, and return what a step runs."""
        model.trainer = self._trainer
        self._sharded = sharding.shard(model, recipe)
        return self._sharded

    def batch(self, micro_batch_size: int) -> PackedBatch:
        """Collate the largest samples, as the training DataLoader does."""
        return self._batch_of(lambda largest: largest(micro_batch_size), micro_batch_size)

    def typical_batch(self, micro_batch_size: int) -> PackedBatch | None:
        """Collate the samples nearest to the median in size; None where those of no loader differ."""
        if not self._varying():
            return None
        return self._batch_of(
            lambda largest: largest.typical(micro_batch_size) or largest(micro_batch_size), micro_batch_size
        )

    def training_samples(self) -> int | None:
        """Return how many the training's dataset has; None for several loaders, or one that makes its own batches."""
        loader = self._tree()
        is_counted = isinstance(loader, DataLoader) and not _makes_its_batches(loader)
        return number_of_samples(loader.dataset) if is_counted else None

    def loader(self, micro_batch_size: int) -> DataLoader[Any] | None:
        """Make the training DataLoader with batches of a size; None for several, or one that makes its own batches."""
        loaders = self._tree()
        return resized_loader(loaders, micro_batch_size) if isinstance(loaders, DataLoader) else None

    def sample_sizes(self) -> Sequence[float]:
        """Return how large samples are, as shares of the largest; none where those of several loaders differ."""
        varying = self._varying()
        return varying[0].sample_sizes() if len(varying) == 1 else ()

    def loss(self, model: Any, batch: PackedBatch) -> torch.Tensor:
        """Run ``training_step``.

        Raises:
            WorkloadError: it returns no loss.
        """
        result = self._result_of("training_step", model, batch)
        found = result.get("loss") if isinstance(result, Mapping) else result
        if not isinstance(found, torch.Tensor):
            raise WorkloadError(
                f"training_step returned {type(found).__name__} where a loss is expected",
                hint="return the loss, or a dict that has it under 'loss'",
            )
        return found

    def evaluate(self, model: Any, batch: PackedBatch) -> Any:
        """Run ``validation_step``."""
        with validating(self._trainer):
            return self._result_of("validation_step", model, batch)

    def evaluation_batch(self, micro_batch_size: int) -> PackedBatch:
        """Return the largest batch of the validation loaders; one of training's present batch size follows that."""
        trained_at_once = {getattr(each, "batch_size", None) for each in _leaves(self._tree())}
        batches = []
        for loader in self._val_loaders:
            if _makes_its_batches(loader):
                batches.append(next(iter(loader)))
                continue
            size = micro_batch_size if loader.batch_size in trained_at_once else loader.batch_size
            batches.append(loader.collate_fn(self._largest_of(loader)(size)))
        prepared = (self._transfer_hook("on_before_batch_transfer", self._source)(each, 0) for each in batches)
        return max(map(packed, prepared), key=lambda each: sum(tensor.nbytes for tensor in each.tensors))

    @functools.cached_property
    def _val_loaders(self) -> list[Any]:
        if self._packed_val_data is not None:
            return _leaves(self._packed_val_data.opened())
        holder = self._source if defines(self._source, "val_dataloader") else self._module
        loaders = holder.val_dataloader()
        return _leaves(getattr(loaders, "iterables", loaders))

    def _result_of(self, name: str, model: Any, batch: PackedBatch) -> Any:
        """Run one of the module's steps on a batch that is on the device, as its first."""
        module: Any = module_in(model) if self._deepspeed is None else model.module
        module.trainer = self._trainer  # a copy of a module is not attached to any
        module.log = module.log_dict = _log_nothing
        data = self._transfer_hook("on_after_batch_transfer", module)(batch.unpacked(), 0)
        step = getattr(module, name)
        takes = list(inspect.signature(step).parameters.values())
        takes_all = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in takes)
        wanted = 2 if takes_all else sum(each.default is inspect.Parameter.empty for each in takes)
        # index of the batch, and of one of several loaders
        arguments = (data, 0, 0)[: max(wanted, min(len(takes), 2))]
        within = self._deepspeed or self._sharding
        return step(*arguments) if within is None else within.run(model, name, arguments)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Return the one optimizer of ``configure_optimizers``, at the rate from which its schedule starts out."""
        if self._sharded is not None:  # it has the parameters that are given
            found = self._configured_optimizer(module_in(self._sharded), self._sharded)
        else:
            with borrowed_parameters(self._module, parameters):
                found = self._configured_optimizer(self._module, self._module)
        for group in found.param_groups:
            group["lr"] = group.get("initial_lr", group.get("lr"))  # a warm-up has set the first step's rate
        return found

    def _configured_optimizer(self, module: Any, model: nn.Module) -> Optimizer:
        """Return the module's only optimizer; its trainer, which is copied with a module, has the model only then."""
        self._trainer.model = model
        try:
            return _only_optimizer(module.configure_optimizers())
        finally:
            del self._trainer.model

    def _data(self) -> Any:
        """Return the training data: a DataLoader, or what the datamodule or module returns for one."""
        if self._source is None:
            with initialisation_skipped():  # of the module itself only its data is wanted here
                self._source = (self._packed_data or self._packed_module).opened()
            if not isinstance(self._source, DataLoader):
                self._source.trainer = self._trainer
                self._trainer.datamodule = self._source
                self._source.prepare_data()
                self._source.setup("fit")
        return self._source if isinstance(self._source, DataLoader) else self._source.train_dataloader()

    def _tree(self) -> Any:
        """Return the training's DataLoader, or lists and dicts of them."""
        if self._loaders is None:
            loaders = self._data()
            self._loaders = getattr(loaders, "iterables", loaders)  # Lightning's CombinedLoader
        return self._loaders

    def _batch_of(self, choose: Callable[[WorstBatches], list[Any]], micro_batch_size: int) -> PackedBatch:
        """Collate the chosen samples of each loader, and do what is done before they go to the device."""

        def collated(loader: Any) -> Any:
            if _makes_its_batches(loader):
                return self._drawn(micro_batch_size)
            return loader.collate_fn(choose(self._largest_of(loader)))

        batch = _mapped(collated, self._tree())
        return packed(self._transfer_hook("on_before_batch_transfer", self._source)(batch, 0))

    def _largest_of(self, loader: Any) -> WorstBatches:
        if id(loader) not in self._largest:
            self._largest[id(loader)] = largest_samples(loader.dataset)
        return self._largest[id(loader)]

    def _varying(self) -> list[WorstBatches]:
        """Return the samples of each loader where they differ in size."""
        loaders = [each for each in _leaves(self._tree()) if not _makes_its_batches(each)]
        return [largest for each in loaders if (largest := self._largest_of(each)).samples_vary]

    def _drawn(self, micro_batch_size: int) -> Any:
        """Take the first batch of a loader whose dataset makes the batches itself."""
        if not hasattr(self._source, self._batch_arg_name):
            raise WorkloadError(
                "the training dataloader makes its batches by itself, and memplan cannot tell it their size",
                hint=f"keep the size in the datamodule's attribute {self._batch_arg_name!r}, or use a batch_size",
            )
        setattr(self._source, self._batch_arg_name, micro_batch_size)
        return next(iter(self._source.train_dataloader()))

    def _transfer_hook(self, name: str, model: Any) -> Callable[[Any, int], Any]:
        """Return the hook of the datamodule where it has one of its own, else the module's."""
        if defines(self._source, name):
            return getattr(self._source, name)  # type: ignore[no-any-return]  # by Lightning's interface
        return getattr(model, name, None) or (lambda batch, _: batch)


def defines(holder: Any, name: str) -> bool:
    """Whether a module or datamodule has a method of its own where Lightning's classes have one that does nothing."""
    method = getattr(type(holder), name, None)
    return method is not None and not method.__module__.startswith(_FRAMEWORKS)


def _only_optimizer(configured: Any) -> Optimizer:
    """Return the optimizer from any of the forms that ``configure_optimizers`` may return.

    Raises:
        WorkloadError: there is none, or there are several.
    """
    found = _optimizers_in(configured)
    if len(found) != 1:
        raise WorkloadError(
            f"configure_optimizers returned {len(found) or 'no'} optimizers, and memplan plans for steps of one",
            hint=RUN_AS_IT_IS if found else None,
        )
    return found[0]  # type: ignore[no-any-return]  # an Optimizer


def _optimizers_in(configured: Any) -> list[Any]:
    if isinstance(configured, torch.optim.Optimizer):
        return [configured]
    if isinstance(configured, Mapping):
        return _optimizers_in(configured.get("optimizer"))
    if isinstance(configured, list | tuple):
        is_pair = len(configured) == 2 and isinstance(configured[0], list)  # optimizers, schedulers
        return [each for part in (configured[0] if is_pair else configured) for each in _optimizers_in(part)]
    return []


def _log_nothing(*_: object, **__: object) -> None:
    """Stand in for ``self.log``, which needs a training loop to log to."""


def _makes_its_batches(loader: Any) -> bool:
    return getattr(loader, "batch_sampler", None) is None


def _leaves(loaders: Any) -> list[Any]:
    if isinstance(loaders, Mapping | list | tuple):
        members = loaders.values() if isinstance(loaders, Mapping) else loaders
        return [leaf for each in members for leaf in _leaves(each)]
    return [loaders]


def _mapped(change: Callable[[Any], Any], loaders: Any) -> Any:
    if isinstance(loaders, Mapping):
        return {name: _mapped(change, each) for name, each in loaders.items()}
    if isinstance(loaders, list | tuple):
        return type(loaders)(_mapped(change, each) for each in loaders)
    return change(loaders)
