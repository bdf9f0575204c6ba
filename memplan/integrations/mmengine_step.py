"""A step of mmengine's Runner as a workload: what runs in the child processes that estimate and try a step.

Model, data preprocessor, dataset, collate function and optimizer are built from the config by mmengine's registries, as
the Runner does it; ``train_step`` runs with an optimizer wrapper that keeps the loss and takes no step. The batch is
preprocessed before the step: raw samples and what the preprocessor makes on its way are not counted, since they are
gone when the forward pass peaks.
"""

from __future__ import annotations

import copy
import functools
import importlib
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from mmengine.logging import MessageHub
from mmengine.optim import OptimWrapperDict, build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from mmengine.runner.activation_checkpointing import turn_on_activation_checkpointing
from torch import nn

from memplan.errors import MemplanError, WorkloadError
from memplan.integrations.borrowed_parameters import borrowed_parameters
from memplan.integrations.framework_step import RUN_AS_IT_IS, FrameworkStep
from memplan.integrations.largest_samples import largest_samples, number_of_samples
from memplan.integrations.mmengine_draws import BatchMoments, Moment, moments_of_batches
from memplan.integrations.mmengine_preprocessor import preprocessor_of
from memplan.integrations.packed_batches import PackedBatch, packed
from memplan.user_places import error_of_user, place_of_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch.optim import Optimizer

    from memplan.integrations.parcels import Parcel
    from memplan.worst_case import WorstBatches

_OWN_SCOPE = "mmengine"
_SINGLE = {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None}
_WRAPPER_ONLY = ("accumulative_counts", "dtype", "loss_scale", "clip_grad", "use_fsdp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What the caller's process has put into mmengine's registries.

    Args:
        modules: modules to import, which register what they define.
        classes: registry name, key and class of what a script defines itself.
    """

    modules: tuple[str, ...]
    classes: tuple[tuple[str, str, Any], ...]


class RunnerStep(FrameworkStep):
    """The callables of a workload that mmengine's Runner trains.

    Args:
        config: the Config and what is registered, packed.
        modules: what to import along with the workload.
    """

    zero_grad_after_step = True

    def __init__(self, config: Parcel, *, modules: tuple[str, ...]) -> None:
        self._packed_config = config
        self._modules = modules
        self._config: Any = None
        self._module: Any = None
        self._loader: Any = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the data up as the workload arrives."""
        self.__dict__.update(state)
        self.set_up()

    def set_up(self) -> None:
        """Open the training data before memory is counted: on the CPU it is part of what is there."""
        for name in self._modules:
            importlib.import_module(name)
        self._loader = self._built_loader("train_dataloader", **_SINGLE)
        self._tell_the_message_hub()

    def _tell_the_message_hub(self) -> None:
        """Tell models and preprocessors where training stands at its start, as the Runner's hook does."""
        lengths = self._opened().get("train_cfg") or {}
        epochs = lengths.get("max_epochs") or 1
        stands = {"loop_stage": "train", "epoch": 0, "iter": 0, "max_epochs": epochs}
        stands["max_iters"] = lengths.get("max_iters") or epochs * len(self._loader)
        if hasattr(self._loader.dataset, "metainfo"):
            stands["dataset_meta"] = self._loader.dataset.metainfo
        MessageHub.get_current_instance().update_info_dict(stands)

    def _built_loader(self, key: str, **changes: Any) -> Any:
        settings = {**copy.deepcopy(self._opened()[key]), **changes}
        with _failure_named(f"{key}.dataset of the config cannot be built"), self._failed_import_named():
            return Runner.build_dataloader(settings, seed=0)

    @functools.cached_property
    def _largest(self) -> WorstBatches:
        return _largest_of("train_dataloader", self._loader)

    @functools.cached_property
    def _moments(self) -> BatchMoments:
        sample = self._loader.collate_fn(self._largest(1))
        iterations = MessageHub.get_current_instance().get_info("max_iters")
        return moments_of_batches(self._preprocessor(), sample, iterations)

    @functools.cached_property
    def _val_loader(self) -> Any:
        return self._built_loader("val_dataloader", **_SINGLE)

    @functools.cached_property
    def _largest_evaluated(self) -> WorstBatches:
        return _largest_of("val_dataloader", self._val_loader)

    def model(self) -> nn.Module:
        """Build the model, its preprocessor from the top of the config where it has none of its own.

        Raises:
            WorkloadError: the optimizer wrapper has several optimizers.
        """
        config = self._opened()
        if (config.get("env_cfg") or {}).get("cudnn_benchmark"):
            torch.backends.cudnn.benchmark = True  # as ``Runner.setup_env`` does
        with self._failed_import_named():
            module = MODELS.build(self._model_settings())
        if config.get("activation_checkpointing") is not None:
            turn_on_activation_checkpointing(module, config.activation_checkpointing)
        self._module = module
        self._optimizer_of(module)
        return module.train()  # type: ignore[no-any-return]  # a model is a Module

    def batch(self, micro_batch_size: int) -> PackedBatch:
        """Collate the largest samples of the training dataset, and preprocess them to the largest size drawn."""
        return self._preprocessed_at(self._moments.worst, self._largest(micro_batch_size))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return from which sizes the data preprocessor draws, where it does."""
        return self._moments.notes

    def training_samples(self) -> int | None:
        """Return how many the training dataset has, repeated ones included where a wrapper repeats it."""
        return number_of_samples(self._loader.dataset)

    def loader(self, micro_batch_size: int) -> Any:
        """Make the training loader as the Runner would, with batches of a size."""
        return self._built_loader("train_dataloader", batch_size=micro_batch_size, dataset=self._loader.dataset)

    def typical_batch(self, micro_batch_size: int) -> PackedBatch | None:
        """Collate the samples nearest to the median in size, preprocessed to the median; None where none differ."""
        samples, moment = self._largest.typical(micro_batch_size), self._moments.typical
        if samples is None and moment is None:
            return None
        if samples is None:
            samples = self._largest(micro_batch_size)
        return self._preprocessed_at(moment or self._moments.worst, samples)

    def sample_sizes(self) -> Sequence[float]:
        """Return how large the samples are that were looked at, as the dataset's pipeline makes them.

        They tell nothing of batches that the preprocessor resizes as a whole.
        """
        return () if self._moments.typical else self._largest.sample_sizes()

    def loss(self, model: Any, batch: PackedBatch) -> torch.Tensor:
        """Run ``train_step`` up to its loss.

        Raises:
            WorkloadError: it updates no parameters, or more than once.
        """
        taker = _LossTaker()
        with _preprocessed_before(model):
            model.train_step(batch.unpacked(), taker)
        if len(taker.losses) != 1:
            raise WorkloadError(
                f"{type(model).__name__}.train_step updates parameters {len(taker.losses)} times, and memplan plans "
                "for one update a step",
                hint=RUN_AS_IT_IS,
            )
        return taker.losses[0]

    def evaluate(self, model: Any, batch: PackedBatch) -> Any:
        """Run ``val_step``."""
        with _preprocessed_before(model):
            return model.val_step(batch.unpacked())

    def evaluation_batch(self, micro_batch_size: int) -> PackedBatch:  # noqa: ARG002 - has a size of its own
        """Collate and preprocess the largest samples of the validation dataset, as many as its loader does."""
        loader = self._val_loader
        samples = self._largest_evaluated(loader.batch_sampler.batch_size)
        return packed(self._preprocessor()(loader.collate_fn(samples), False))

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Return the optimizer that the wrapper's constructor makes, parameter-wise settings included."""
        with borrowed_parameters(self._module, parameters):
            return self._optimizer_of(self._module)

    def _preprocessed_at(self, moment: Moment, samples: list[Any]) -> PackedBatch:
        return packed(moment.preprocessed(self._loader.collate_fn(samples)))

    def _preprocessor(self) -> nn.Module:
        with self._failed_import_named():
            return preprocessor_of(self._model_settings())

    def _optimizer_of(self, module: nn.Module) -> Optimizer:
        settings = copy.deepcopy(self._opened().optim_wrapper)
        for name in _WRAPPER_ONLY:
            settings.pop(name, None)
        settings["type"] = "OptimWrapper"  # one that autocasts refuses to be built without a card
        wrapper = build_optim_wrapper(module, settings)
        if isinstance(wrapper, OptimWrapperDict):
            raise WorkloadError(
                f"optim_wrapper has {len(wrapper)} optimizers, and memplan plans for steps of one",
                hint="plan each part by itself with memplan.plan(workload, ...)",
            )
        return wrapper.optimizer  # type: ignore[no-any-return]  # a torch Optimizer

    def _model_settings(self) -> Any:
        """Return the model's settings, with the preprocessor's from the top of the config where it has none."""
        config = self._opened()
        wanted = copy.deepcopy(config.model)
        if preprocessing := wanted.get("data_preprocessor") or copy.deepcopy(config.get("data_preprocessor")):
            wanted["data_preprocessor"] = preprocessing
        return wanted

    @contextmanager
    def _failed_import_named(self) -> Iterator[None]:
        """Say why the scope's package is not in the registries: mmengine logs that it is not, and goes on without it.

        Raises:
            WorkloadError: something is not registered, and importing the package fails.
        """
        try:
            yield
        except KeyError as error:
            scope = self._opened().get("default_scope") or _OWN_SCOPE
            try:
                importlib.import_module(f"{scope}.registry")
            except ImportError as failed:
                unknown = str(error.args[0]).partition(". ")[0]
                problem = f"importing {scope}.registry failed: {failed}; without it, {unknown}"
                raise WorkloadError(problem, where=place_of_error(failed)) from error
            raise

    def _opened(self) -> Any:
        if self._config is None:
            self._config, registered = self._packed_config.opened()
            for name, key, each in registered.classes:
                _registry_named(name).register_module(name=key, module=each, force=True)
            init_default_scope(self._config.get("default_scope") or _OWN_SCOPE)
        return self._config


def _largest_of(key: str, loader: Any) -> WorstBatches:
    with _failure_named(f"a sample of {key}.dataset of the config cannot be read"):
        return largest_samples(loader.dataset)


@contextmanager
def _failure_named(what: str) -> Iterator[None]:
    """Say of an error which data of the config it befell.

    Raises:
        WorkloadError: there was one.
    """
    try:
        yield
    except MemplanError:
        raise
    except FileNotFoundError as error:
        failed = error_of_user(what, error)
        raise WorkloadError(failed.problem, hint=_where_data_are_sought(), detail=failed.detail) from error
    except Exception as error:
        raise error_of_user(what, error) from error


def _where_data_are_sought() -> str:
    return (
        f"relative paths are looked for in {Path.cwd()}: start memplan in the folder where you train, or set the "
        "dataset's data_root to where the data are"
    )


class _Done(nn.Module):
    """Replaces a data preprocessor that has done its work."""

    def forward(self, data: Any, training: bool = False) -> Any:  # noqa: ARG002 - mmengine's interface
        return data


@contextmanager
def _preprocessed_before(model: Any) -> Iterator[None]:
    """Have a model take batches that are preprocessed while the context is open."""
    own = model.data_preprocessor
    model.data_preprocessor = _Done()
    try:
        yield
    finally:
        model.data_preprocessor = own


class _LossTaker:
    """Replaces an optimizer wrapper: memplan itself casts, accumulates and steps."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []

    def optim_context(self, _model: nn.Module) -> nullcontext[None]:
        return nullcontext()

    def update_params(self, loss: torch.Tensor, *_: object, **__: object) -> None:
        self.losses.append(loss)


def _registry_named(name: str) -> Any:
    registries = importlib.import_module("mmengine.registry")
    return getattr(registries, name)
