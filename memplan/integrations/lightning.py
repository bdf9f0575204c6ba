"""Plan a Lightning training before its Trainer is built, and check the plan while it runs.

::

    settings, plan = memplan.integrations.lightning.tune(dict(max_epochs=10), module, datamodule=data)
    trainer = Trainer(**settings, callbacks=[MemplanCallback(plan)])
    trainer.fit(module, datamodule=data)
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from memplan.devices.driver import read_cards
from memplan.errors import DeviceError, MissingExtraError, UsageError
from memplan.integrations.attributes import Place, places_of
from memplan.integrations.extras import needs_extra
from memplan.integrations.framework_step import RUN_AS_IT_IS
from memplan.integrations.lightning_stand_in import is_standalone
from memplan.integrations.parcels import Parcel
from memplan.integrations.tuning import PlanOptions, planned, refuse_unknown_options
from memplan.recommend.scaling import optimizer_step_factor
from memplan.watching import PlanWarning, watch

with needs_extra("lightning", "lightning", "pytorch_lightning"):
    if is_standalone():
        from pytorch_lightning import Callback, LightningModule
        from pytorch_lightning.callbacks import GradientAccumulationScheduler
        from pytorch_lightning.strategies import (
            DeepSpeedStrategy,
            FSDPStrategy,
            ModelParallelStrategy,
            StrategyRegistry,
        )
    else:
        from lightning.pytorch import Callback, LightningModule
        from lightning.pytorch.callbacks import GradientAccumulationScheduler
        from lightning.pytorch.strategies import (
            DeepSpeedStrategy,
            FSDPStrategy,
            ModelParallelStrategy,
            StrategyRegistry,
        )

from memplan.integrations.lightning_deepspeed import LightningDeepSpeed
from memplan.integrations.lightning_sharding import LightningSharding
from memplan.integrations.lightning_step import LightningStep, defines

if TYPE_CHECKING:
    from memplan.plans import Plan

_FORMAT = "lightning-hydra"
_RATE_NAMES = (
    "lr",
    "learning_rate",
    "hparams.lr",
    "hparams.learning_rate",
    "hparams.optimizer.lr",
    "hparams.optimizer.keywords.lr",  # a partial, as Hydra's _partial_ makes it
)
_STEP_INTERVAL = re.compile(r"""["']?interval["']?\s*[:=]\s*["']step["']""")
_AVERAGING = ("WeightAveraging", "StochasticWeightAveraging")


def tune(
    settings: Mapping[str, Any],
    module: Any,
    *,
    datamodule: Any = None,
    train_dataloaders: Any = None,
    val_dataloaders: Any = None,
    batch_arg_name: str = "batch_size",
    lr_arg_name: str | None = None,
    **options: Unpack[PlanOptions],
) -> tuple[dict[str, Any], Plan]:
    """Plan the training of a LightningModule, and set what the plan says.

    The batch size is written to the attribute or hyper-parameter ``batch_arg_name`` of datamodule and module, the
    learning rate to ``lr_arg_name``; precision, accumulation and lengths counted in steps are in the returned arguments
    of the Trainer. A plain DataLoader cannot be changed: rebuild it with ``plan.recipe.micro_batch_size``.

    Args:
        settings: the arguments that the Trainer will get.
        module: the LightningModule, trained by automatic optimization with one optimizer; it is not run here.
        datamodule: its LightningDataModule.
        train_dataloaders: a DataLoader, where there is no datamodule.
        val_dataloaders: one that is validated on, where neither datamodule nor module have their own.
        batch_arg_name: attribute or hyper-parameter that holds the micro-batch size.
        lr_arg_name: the same for the learning rate, dots allowed; None looks for ``lr`` and ``learning_rate``.
        options: as for :func:`memplan.plan`; ``device`` follows the Trainer's ``accelerator`` where it is not given.

    Returns:
        The Trainer's arguments with the plan's values, and the plan.

    Raises:
        UsageError: an option is not known, the module optimizes manually, FSDP's strategy offloads the model,
            DeepSpeed's configuration has an optimizer, or there is no batch size.
        MemplanError: as for :func:`memplan.plan`.
    """
    refuse_unknown_options(tune, options)
    _refuse_what_cannot_be_planned(settings, module)
    data = datamodule if datamodule is not None else train_dataloaders
    sizes = places_of([datamodule, module], (batch_arg_name, f"hparams.{batch_arg_name}"))
    rates = places_of([module], (lr_arg_name,) if lr_arg_name else _RATE_NAMES)
    values: dict[str, Any] = {
        "trainer": {name: each for name, each in settings.items() if isinstance(each, int | float | str | None)},
        "data": {"batch_size": _batch_size(sizes, train_dataloaders, batch_arg_name)},
        "model": {"lr": rates[0].value} if rates else {},
    }
    step = LightningStep(
        Parcel(module),
        None if data is None else Parcel(data),
        module_type=type(module),
        batch_arg_name=batch_arg_name,
        settings=values["trainer"],
        val_data=None if val_dataloaders is None else Parcel(val_dataloaders),
        sharding=_sharding(settings),
        deepspeed=_deepspeed(settings, module),
    )
    plan = planned(
        step.workload(
            grad_clip_norm=_clip_norm(settings),
            evaluates=_validates(settings, module, has_data=val_dataloaders is not None or _has_val_data(data, module)),
            ema=_averages_on_device(settings),
        ),
        values,
        format_name=_FORMAT,
        options={"device": _device(settings), "world_size": _world_size(settings), **options},
    )
    changed = plan.apply(copy.deepcopy(values), format_name=_FORMAT)
    _write(sizes, changed["data"].get("batch_size"))
    _write(rates, changed["model"].get("lr"))
    return {**settings, **changed["trainer"]}, replace(plan, notes=(*plan.notes, *_notes_on_schedulers(module, plan)))


def _notes_on_schedulers(module: Any, plan: Plan) -> tuple[str, ...]:
    """Say what a scheduler of the module's own that counts steps would need, as far as its source shows one."""
    try:
        source = inspect.getsource(type(module).configure_optimizers)
    except (OSError, TypeError):  # typed into an interpreter
        return ()
    factor = optimizer_step_factor(plan.current, plan.recipe)
    if factor == 1 or not _STEP_INTERVAL.search(source):
        return ()
    told = "configure_optimizers has a scheduler that counts steps, which is left alone: the same samples take"
    return (f"{told} {float(factor):.3g} times as many of them now",)


def _batch_size(sizes: list[Place], train_dataloaders: Any, batch_arg_name: str) -> float:
    size = sizes[0].value if sizes else getattr(train_dataloaders, "batch_size", None)
    if size is None:
        raise UsageError(
            f"neither module nor datamodule has an attribute or hyper-parameter {batch_arg_name!r}",
            hint="name the one that holds the batch size with batch_arg_name=",
        )
    return float(size) if isinstance(size, float) else int(size)


def _write(places: list[Place], value: float) -> None:
    for place in places:
        place.write(value)


def _refuse_what_cannot_be_planned(settings: Mapping[str, Any], module: Any) -> None:
    name = type(module).__name__
    if not isinstance(settings, Mapping):
        raise UsageError(
            f"the settings are a {type(settings).__name__}, not the arguments of the Trainer",
            hint="give them as a dict, and build the Trainer of what tune returns: Trainer(**settings)",
        )
    if not isinstance(module, LightningModule):
        raise UsageError(f"{name} is no LightningModule", hint="call tune(settings, module, datamodule=...)")
    if not module.automatic_optimization:
        raise UsageError(
            f"{name} optimizes manually (automatic_optimization = False), and memplan cannot see its steps",
            hint=RUN_AS_IT_IS,
        )
    for each in _callbacks(settings):
        if isinstance(each, GradientAccumulationScheduler):
            steps = max(each.scheduling.values())
            raise UsageError(
                "a GradientAccumulationScheduler changes accumulation between epochs, and memplan plans for one",
                hint=f"plan with accumulate_grad_batches={steps} in its place, the most it comes to",
            )


def _sharding(settings: Mapping[str, Any]) -> LightningSharding | None:
    """Return what the strategy does to the module; None where every card holds the whole of it.

    Raises:
        UsageError: it offloads the module by FSDP.
    """
    strategy = settings.get("strategy")
    if isinstance(strategy, str) and strategy.startswith("fsdp"):
        strategy = StrategyRegistry.get(strategy)
    by_module = isinstance(strategy, ModelParallelStrategy)
    if not by_module and not isinstance(strategy, FSDPStrategy):
        return None
    if getattr(getattr(strategy, "cpu_offload", None), "offload_params", False):
        raise UsageError(
            f"{type(strategy).__name__} has cpu_offload, and memplan counts what lies on the card",
            hint="plan with strategy='fsdp', 'ddp' or on one device",
        )
    return LightningSharding(Parcel(strategy), by_module=by_module, num_nodes=int(settings.get("num_nodes") or 1))


def _deepspeed(settings: Mapping[str, Any], module: Any) -> LightningDeepSpeed | None:
    """Return what DeepSpeed does to the module; None where it does not train.

    Raises:
        MissingExtraError: its strategy is named, and it is not installed.
        UsageError: its configuration has an optimizer, which takes the place of the module's.
    """
    strategy = settings.get("strategy")
    if isinstance(strategy, str) and strategy.startswith("deepspeed"):
        if importlib.util.find_spec("deepspeed") is None:
            raise MissingExtraError(
                f"strategy={strategy!r} needs deepspeed, which is not installed",
                hint="install it with: pip install 'memplan[deepspeed]'",
            )
        strategy = StrategyRegistry.get(strategy)
    if not isinstance(strategy, DeepSpeedStrategy):
        return None
    if "optimizer" in strategy.config:
        raise UsageError(
            "DeepSpeed's configuration has an optimizer, in the place of the module's",
            hint="leave it to configure_optimizers, as Lightning recommends",
        )
    return LightningDeepSpeed(strategy, zero_init=defines(module, "configure_model"))


def _clip_norm(settings: Mapping[str, Any]) -> float | None:
    """Return the largest gradient norm; clipping by value needs no memory of its own."""
    by_norm = str(settings.get("gradient_clip_algorithm") or "norm") == "norm"
    value = settings.get("gradient_clip_val")
    return float(value) if value and by_norm else None


def _has_val_data(data: Any, module: Any) -> bool:
    return any(defines(each, "val_dataloader") for each in (data, module))


def _validates(settings: Mapping[str, Any], module: Any, *, has_data: bool) -> bool:
    """Whether the Trainer validates between steps."""
    return has_data and defines(module, "validation_step") and settings.get("limit_val_batches") != 0


def _averages_on_device(settings: Mapping[str, Any]) -> bool:
    """Whether a callback keeps an average of the weights on the device, as it does where its ``device`` is None."""
    return any(
        any(each.__name__ in _AVERAGING for each in type(callback).__mro__)
        and "cpu" not in str(getattr(callback, "_device", None))
        for callback in _callbacks(settings)
    )


def _callbacks(settings: Mapping[str, Any]) -> list[Any]:
    given = settings.get("callbacks") or ()
    return [given] if isinstance(given, Callback) else list(given)


def _device(settings: Mapping[str, Any]) -> str | None:
    """Return the device that the Trainer's arguments name; None where they leave it open."""
    if settings.get("accelerator") == "cpu":
        return "cpu"
    if indices := _indices(settings):
        return f"cuda:{indices[0]}"
    return "cuda" if settings.get("accelerator") in ("gpu", "cuda") else None


def _indices(settings: Mapping[str, Any]) -> list[int]:
    """Return the cards that are named one by one, in a list or as in ``"0,1"``; none where they are counted."""
    devices = settings.get("devices")
    named = devices.split(",") if isinstance(devices, str) and "," in devices else devices
    return [int(each) for each in named if str(each).strip()] if isinstance(named, list | tuple) else []


def _world_size(settings: Mapping[str, Any]) -> int:
    devices, nodes = settings.get("devices", "auto"), int(settings.get("num_nodes") or 1)
    if indices := _indices(settings):
        return len(indices) * nodes
    if str(devices).isdecimal() and int(devices) > 0:
        return int(devices) * nodes
    return nodes * (1 if settings.get("accelerator") == "cpu" else _cards())


def _cards() -> int:
    try:
        return len(read_cards()) or 1
    except DeviceError:
        return 1


class MemplanCallback(Callback):
    """Compares what the training really takes with its plan after every epoch and at its end; see ``memplan.watch``.

    It also warns before training if a DataLoader makes batches of another size than planned.

    Args:
        plan: the plan that :func:`tune` returned.
    """

    def __init__(self, plan: Plan) -> None:
        self._watch = watch(plan)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's interface
        """Warn where a DataLoader that was built by hand still has another batch size."""
        size, planned_size = _loader_batch_size(trainer), self._watch.plan.recipe.micro_batch_size
        if size not in (None, planned_size):
            message = (
                f"the DataLoader makes batches of {size}; {planned_size} are planned: build it with that batch_size"
            )
            warnings.warn(message, PlanWarning, stacklevel=2)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's interface
        """Compare, and warn the first time that the band is left."""
        self._watch.check()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's interface
        """Compare the peak of the whole training."""
        self._watch.check()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002 - likewise
        """Store the comparison of a training that failed."""
        self._watch.check()


def _loader_batch_size(trainer: Any) -> int | None:
    """Return the batch size of the only DataLoader; None with several, or where a sampler makes the batches."""
    return getattr(trainer.train_dataloader, "batch_size", None)
