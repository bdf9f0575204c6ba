"""A Hugging Face Trainer's step as a workload: what runs in the child processes that estimate and try a step.

The model is driven by a Trainer of the user's own class, on the CPU and without reporting: its collator makes the
batches, its ``compute_loss`` the loss and its ``create_optimizer`` the optimizer. What it makes of model and dataset
itself, as TRL's tokenize texts and add adapters, is what is trained. Under autocast the model's outputs are converted
to fp32 as accelerate does in ``Accelerator.prepare_model``, a copy of the logits included.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import FullyShardedDataParallelPlugin, convert_outputs_to_fp32
from torch import nn
from torch.utils.data import ConcatDataset

from memplan.integrations.borrowed_parameters import borrowed_parameters, borrowed_tensors
from memplan.integrations.framework_step import FrameworkStep
from memplan.integrations.largest_samples import largest_samples, number_of_samples
from memplan.integrations.transformers_arguments import class_on_device_of
from memplan.training.batches import map_tensors
from memplan.training.skipped_initialisation import initialisation_skipped
from memplan.worst_case import spread_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.optim import Optimizer

    from memplan.integrations.parcels import Parcel
    from memplan.recipe import Recipe
    from memplan.workload import Workload
    from memplan.worst_case import WorstBatches

_LOOK_AT = 10_000  # samples are short lists of numbers
_ASKS_FOR_DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"  # a variable of accelerate's
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerParts:
    """What a Trainer is made of.

    Args:
        trainer_class: the Trainer's class.
        options: the model or its name, where no function makes it, and further arguments of the Trainer, which may
            refer to it, in one parcel.
        arguments_class: class of its TrainingArguments.
        arguments: their values in a single step, as ``step_arguments`` makes them.
        dataset: the training dataset, packed.
        collator: makes batches; None for the Trainer's default.
        processing_class: tokenizer or processor; None where there is none.
        eval_dataset: the dataset that is evaluated between steps, or several by name, packed; None where none is.
        sharding: settings of accelerate's plugin for FSDP2; None where every card holds the whole model.
        deepspeed: DeepSpeed's configuration; None where it does not train.
        zero_init: whether weights that DeepSpeed shards are so as they are made.
        compilation: arguments of ``torch.compile``, which accelerate compiles the model with; None where it does not.
        loader_arguments: those that the training's loader has and a single step has not.
    """

    trainer_class: type[Any]
    options: Parcel
    arguments_class: type[Any]
    arguments: Mapping[str, Any]
    dataset: Parcel
    collator: Callable[..., Any] | None
    processing_class: Any
    eval_dataset: Parcel | None = None
    sharding: Mapping[str, Any] | None = None
    deepspeed: Mapping[str, Any] | None = None
    zero_init: bool = True
    compilation: Mapping[str, Any] | None = None
    loader_arguments: Mapping[str, Any] = field(default_factory=dict)


class TrainerStep(FrameworkStep):
    """The callables of a workload that a Trainer trains.

    Args:
        parts: what the Trainer is made of.
        model_init: the function that makes the model; None where the parts have it.
    """

    zero_grad_after_step = True

    def __init__(self, parts: TrainerParts, *, model_init: Callable[..., nn.Module] | None) -> None:
        self._parts = parts
        self._model_init = model_init
        self._dataset: Any = None
        self._evaluated: Any = None
        self._prepared: Any = None
        self._prepared_evaluated: Any = None
        self._trainer: Any = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpack the data as the workload arrives, before memory is counted: on the CPU it is part of what is there."""
        self.__dict__.update(state)
        self._dataset = self._parts.dataset.opened()
        if self._parts.eval_dataset is not None:
            self._evaluated = self._parts.eval_dataset.opened()

    @functools.cached_property
    def _largest(self) -> WorstBatches:
        self._make_trainer_once()
        return largest_samples(self._prepared, look_at=_LOOK_AT, by_selection=True)

    @functools.cached_property
    def _largest_evaluated(self) -> WorstBatches:
        self._make_trainer_once()
        first, *rest = _datasets_in(self._prepared_evaluated)
        evaluated = ConcatDataset([first, *rest]) if rest else first
        return largest_samples(evaluated, look_at=_LOOK_AT, by_selection=True)

    def model(self) -> nn.Module:
        """Make a new model, and a Trainer for it."""
        options = dict(self._parts.options.opened())
        given = options.pop("model") if self._model_init is None else _called_model_init(self._model_init)
        self._trainer = self._trainer_of(given, options)
        _take_along(self._trainer)
        model: nn.Module = self._trainer.model.train()
        if self._parts.compilation is not None:
            model.compile(**self._parts.compilation)
        return model

    def workload(self, *, grad_clip_norm: float | None, evaluates: bool = False, ema: bool = False) -> Workload:
        """Return the workload of these callables, sharded where the Trainer shards it; as ``FrameworkStep`` has it."""
        found = super().workload(grad_clip_norm=grad_clip_norm, evaluates=evaluates, ema=ema)
        if self._parts.deepspeed is not None:
            return replace(found, deepspeed=self._parts.deepspeed, zero_init=self._parts.zero_init)
        return found if self._parts.sharding is None else replace(found, shard=self.shard, defers_gradient_sync=True)

    def shard(self, model: nn.Module, recipe: Recipe) -> None:
        """Shard the model as accelerate does (``Accelerator._prepare_fsdp2``), which autocasts nothing then."""
        if self._parts.sharding is None:
            return
        from accelerate.utils import fsdp_utils  # noqa: PLC0415 - older versions of it have no FSDP2

        plugin = FullyShardedDataParallelPlugin(**{**self._parts.sharding, "cpu_ram_efficient_loading": False})
        mixed_precision = str(recipe.precision) if recipe.precision.is_autocast else "no"
        if recipe.precision.is_autocast:
            plugin.set_mixed_precision(mixed_precision)
        accelerator = SimpleNamespace(
            state=SimpleNamespace(fsdp_plugin=plugin), mixed_precision=mixed_precision, is_main_process=False
        )
        plugin.set_auto_wrap_policy(model)
        if plugin.activation_checkpointing:
            fsdp_utils.fsdp2_apply_ac(accelerator, model)
        fsdp_utils.fsdp2_prepare_model(accelerator, model)

    def batch(self, micro_batch_size: int) -> dict[str, Any]:
        """Collate the longest samples, as the Trainer's own loader does."""
        return self._collated(self._largest(micro_batch_size))

    def typical_batch(self, micro_batch_size: int) -> dict[str, Any] | None:
        """Collate the samples nearest to the median in length; None where all are of one length."""
        samples = self._largest.typical(micro_batch_size)
        return None if samples is None else self._collated(samples)

    def training_samples(self) -> int | None:
        """Return how many the prepared training dataset has; samples that were packed into one count once."""
        self._make_trainer_once()
        return number_of_samples(self._prepared)

    def loader(self, micro_batch_size: int) -> Any:
        """Make the Trainer's own loader of the training dataset, with batches of a size."""
        self._make_trainer_once()
        trainer = copy.copy(self._trainer)
        trainer.args = copy.copy(trainer.args)
        for name, value in self._parts.loader_arguments.items():
            setattr(trainer.args, name, value)
        trainer.args.per_device_train_batch_size = trainer._train_batch_size = micro_batch_size  # noqa: SLF001 - read by its loader
        trainer.train_dataset = self._prepared
        return trainer.get_train_dataloader()

    def sample_sizes(self) -> Sequence[float]:
        """Return how long the samples are that were looked at."""
        return self._largest.sample_sizes()

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
        """Run ``compute_loss``, and return cached memory after it where the Trainer does so in every step."""
        with self._computing_with(model):
            loss: torch.Tensor = self._trainer.compute_loss(model, dict(batch))
        if self._trainer.args.torch_empty_cache_steps == 1:
            torch.cuda.empty_cache()
        return loss

    def evaluate(self, model: nn.Module, batch: dict[str, Any]) -> Any:
        """Run ``prediction_step``, and return as much as is on the device once all batches have been.

        Where the Trainer computes metrics, logits and labels stay there for ``eval_accumulation_steps`` batches, by
        default for the whole dataset (``Trainer.evaluation_loop``); each batch's are joined to those before.
        """
        trainer = self._trainer
        loss_only = trainer.compute_metrics is None or trainer.args.prediction_loss_only
        with self._computing_with(model):
            loss, logits, labels = trainer.prediction_step(model, dict(batch), loss_only)
        if loss_only:
            return loss
        if trainer.preprocess_logits_for_metrics is not None:
            logits = trainer.preprocess_logits_for_metrics(logits, labels)
        if trainer.args.batch_eval_metrics:
            return loss, logits, labels
        steps = trainer.args.eval_accumulation_steps
        samples = max(map(len, _datasets_in(self._evaluated)))
        if steps is not None:
            samples = min(samples, steps * trainer.args.per_device_eval_batch_size)
        return loss, _of_samples(logits, samples), _of_samples(labels, samples)

    def evaluation_batch(self, micro_batch_size: int) -> dict[str, Any]:  # noqa: ARG002 - has a size of its own
        """Collate the longest samples of the evaluation dataset, ``per_device_eval_batch_size`` of them."""
        samples = self._largest_evaluated(self._parts.arguments["per_device_eval_batch_size"])
        return dict(next(iter(self._trainer.get_eval_dataloader(samples))))

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Return what ``create_optimizer`` makes for ``args.optim``: of a model with adapters, theirs only."""
        with borrowed_parameters(self._trainer.model, parameters):
            self._trainer.optimizer = None
            return self._trainer.create_optimizer()  # type: ignore[no-any-return]  # by its interface

    def _collated(self, samples: list[Any]) -> dict[str, Any]:
        trainer, size = self._trainer, len(samples)
        trainer.train_dataset, trainer._train_batch_size, trainer.args.per_device_train_batch_size = samples, size, size  # noqa: SLF001 - read by its loader
        return dict(next(iter(trainer.get_train_dataloader())))

    @contextmanager
    def _computing_with(self, model: nn.Module) -> Iterator[None]:
        """Let the Trainer's own model compute as a copy of it that is traced: a loss may refer to either."""
        own = self._trainer.model
        if self._parts.sharding is not None or self._parts.deepspeed is not None:  # what shards it takes its place
            self._trainer.model = model
            try:
                yield
            finally:
                self._trainer.model = own
            return
        with borrowed_tensors(own, model), ExitStack() as stack:
            for each in dict.fromkeys((own, model)):
                stack.enter_context(_outputs_as_prepared(each))
            yield

    def _make_trainer_once(self) -> None:
        if self._trainer is None:
            with initialisation_skipped():  # only data and the signature of its forward pass are wanted
                self.model()

    def _trainer_of(self, given: nn.Module | str, options: Mapping[str, Any]) -> Any:
        """Make a Trainer; the first one prepares the samples to look at, and others need only one of them.

        Args:
            given: the model, or its name where the Trainer's class loads it by that, as TRL's do.
            options: further arguments of the Trainer.
        """
        parts = self._parts
        models = [given] if isinstance(given, nn.Module) else []
        count = _LOOK_AT if self._prepared is None else 1
        dataset, evaluated = _spread(self._dataset, count), _spread(self._evaluated, count)
        with _without_deepspeed():
            trainer = parts.trainer_class(
                model=given,
                args=self._arguments(models),
                train_dataset=dataset,
                eval_dataset=evaluated,
                data_collator=parts.collator,
                processing_class=parts.processing_class,
                **options,
            )
        if not models:
            models.append(trainer.model)
        if self._prepared is None:
            self._prepared = self._dataset if trainer.train_dataset is dataset else trainer.train_dataset
            self._prepared_evaluated = self._evaluated if trainer.eval_dataset is evaluated else trainer.eval_dataset
        return trainer

    def _arguments(self, models: Sequence[nn.Module]) -> Any:
        made = class_on_device_of(models, self._parts.arguments_class)
        return made(**{**self._parts.arguments, "output_dir": tempfile.gettempdir()})


@contextmanager
def _without_deepspeed() -> Iterator[None]:
    """Hide while the context is open that a launcher asks for DeepSpeed: its engine is made around the Trainer."""
    asked = os.environ.pop(_ASKS_FOR_DEEPSPEED, None)
    try:
        yield
    finally:
        if asked is not None:
            os.environ[_ASKS_FOR_DEEPSPEED] = asked


def _take_along(trainer: Any) -> None:
    """Add to a model what its Trainer keeps beside it on the device, such as TRL's reference models."""
    place = _called_by_name(trainer.model)
    for name, held in list(vars(trainer).items()):
        if isinstance(held, nn.Module):
            for number, other in enumerate(_outside(held, trainer.model)):
                place.add_module(f"{name}_{number}", other)


def _called_by_name(model: nn.Module) -> nn.Module:
    """Return a part of a model that does not run all of its children in turn, as containers do."""
    while isinstance(model, _CONTAINERS) and len(model):
        model = next(model.children())
    return model


def _outside(held: nn.Module, model: nn.Module) -> list[nn.Module]:
    """Return the module, or the parts of it that do not hold the model, if they have tensors that the model has not."""
    has_tensors = next(chain(held.parameters(), held.buffers()), None) is not None
    if held in set(model.modules()) or not has_tensors:
        return []
    holds_model = model in set(held.modules())
    return [each for child in held.children() for each in _outside(child, model)] if holds_model else [held]


def _spread(dataset: Any, count: int) -> Any:
    """Return so many samples from all over a Hugging Face dataset; any other is only handed on, and returned whole."""
    if isinstance(dataset, Mapping):
        return {name: _spread(each, count) for name, each in dataset.items()}
    return dataset.select(spread_over(len(dataset), count)) if hasattr(dataset, "select") else dataset


def _datasets_in(given: Any) -> list[Any]:
    return list(given.values()) if isinstance(given, Mapping) else [given]


def _of_samples(outputs: Any, samples: int) -> Any:
    """Return tensors as those of a batch are once they are joined to others, with one row a sample."""
    return map_tensors(lambda each: each.new_zeros((samples, *each.shape[1:])) if each.dim() else each, outputs)


def _called_model_init(model_init: Any) -> nn.Module:
    """Call ``model_init`` as the Trainer does: with the trial of a hyper-parameter search where it takes one."""
    takes_trial = len(inspect.signature(model_init).parameters) == 1
    return model_init(None) if takes_trial else model_init()  # type: ignore[no-any-return]  # by its interface


@contextmanager
def _outputs_as_prepared(model: nn.Module) -> Iterator[None]:
    """Convert the outputs of a model that runs under autocast to fp32 while the context is open."""
    if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
        yield
        return
    own = vars(model).get("forward")
    model.forward = convert_outputs_to_fp32(model.forward)
    try:
        yield
    finally:
        del model.forward
        if own is not None:
            model.forward = own
