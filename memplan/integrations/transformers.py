"""Plan a Hugging Face training before its Trainer is built, and check the plan while it runs.

::

    args, plan = memplan.integrations.transformers.tune(args, model_init=make_model, train_dataset=dataset)
    trainer = Trainer(args=args, model_init=make_model, train_dataset=dataset, callbacks=[MemplanCallback(plan)])
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from memplan.configs.keys import get
from memplan.errors import UsageError
from memplan.integrations.extras import needs_extra
from memplan.integrations.framework_step import RUN_AS_IT_IS
from memplan.integrations.parcels import Parcel
from memplan.integrations.tuning import PlanOptions, planned, refuse_unknown_options
from memplan.training.deepspeed_engine import parts_of
from memplan.watching import watch

with needs_extra("transformers", "transformers", "accelerate"):
    import accelerate  # noqa: F401 - the Trainer needs it
    from transformers import IntervalStrategy, Trainer, TrainerCallback

from memplan.integrations.transformers_arguments import loader_arguments, step_arguments
from memplan.integrations.transformers_step import TrainerParts, TrainerStep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan.plans import Plan

_FORMAT = "huggingface"
_ALWAYS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "bf16",
    "fp16",
    "tf32",
    "use_cpu",
)
_FSDP_VERSION = 2
_FSDP2 = "plan with fsdp=True and fsdp_config={'version': 2}, in transformers 5.20 or later"
_CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")  # from transformers 5.23 on, and before
_TRAINERS_OWN = "what the Trainer alone takes goes into trainer_options=dict({name}=...)"
_FOLLOWING = (  # keys of DeepSpeed's configuration that transformers compares with the arguments
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "train_batch_size",
    "bf16.enabled",
    "fp16.enabled",
    "optimizer.params.lr",
    "scheduler.params.warmup_max_lr",
)
_OPTIMIZER = "optimizer.type"
_FUSED = ("Adam", "AdamW")  # of which DeepSpeed has fused ones of its own, with the same states
_LENGTHS = ("max_steps", "warmup_steps", "save_steps", "eval_steps")


def tune(
    args: Any,
    *,
    train_dataset: Any,
    eval_dataset: Any = None,
    model_init: Callable[..., Any] | None = None,
    model: Any = None,
    data_collator: Callable[..., Any] | None = None,
    processing_class: Any = None,
    trainer_class: type[Any] = Trainer,
    trainer_options: Mapping[str, Any] | None = None,
    **options: Unpack[PlanOptions],
) -> tuple[Any, Plan]:
    """Plan the training that a Trainer of these arguments would do, with the longest samples of the dataset.

    Pass what the Trainer will get. With an evaluation dataset ``compute_metrics`` among ``trainer_options`` counts too,
    because the Trainer keeps the logits for it on the device. Precision, batch, accumulation, learning rate and
    everything counted in optimizer steps are set in a copy of the arguments; build the Trainer from that, because it
    reads them only once.

    Args:
        args: the TrainingArguments.
        train_dataset: the training dataset; up to 10,000 samples are read to find the longest.
        eval_dataset: what is evaluated between steps, where ``args.eval_strategy`` says so; None leaves that out.
        model_init: makes the model; of a model with adapters only what is trained gets an optimizer.
        model: the model itself, where there is no ``model_init``; it travels without the values of its weights. Or its
            name, where the Trainer's class takes one, as TRL's do.
        data_collator: makes batches; None for the Trainer's default.
        processing_class: tokenizer or processor.
        trainer_class: the Trainer's class; its ``compute_loss`` and ``create_optimizer`` are used.
        trainer_options: further arguments of it, such as ``compute_loss_func`` or TRL's ``peft_config``.
        options: as for :func:`memplan.plan`; ``device`` is the CPU where ``args.use_cpu`` says so.

    Returns:
        A copy of the arguments with the plan's values, and the plan.

    Raises:
        UsageError: there is no model or there are two, an option is none of ``tune`` or is given twice, the Trainer's
            class makes its batches in the step, the arguments shard the model by FSDP's first version or with FSDP's
            offloading, or spread it over cards, DeepSpeed has sharded the model already, or its configuration fixes
            what a plan sets or has an optimizer that is none of PyTorch's.
        MemplanError: as for :func:`memplan.plan`.
    """
    if (model is None) == (model_init is None):
        raise UsageError("tune takes either model_init= or model=, and exactly one of them")
    if train_dataset is None:
        raise UsageError("train_dataset=None leaves nothing to train with", hint="give what the Trainer will get")
    refuse_unknown_options(tune, options, elsewhere=_TRAINERS_OWN)
    _refuse_own(trainer_options or {})
    _refuse_batches_made_in_the_step(trainer_class)
    sharding, deepspeed = _sharding(args), _deepspeed(args)
    _refuse_data_parallel(args)
    _refuse_sharded(model)
    evaluates = eval_dataset is not None and args.eval_strategy != IntervalStrategy.NO
    parts = TrainerParts(
        trainer_class=trainer_class,
        options=Parcel({**(trainer_options or {}), **({} if model is None else {"model": model})}),
        arguments_class=type(args),
        arguments=step_arguments(_values(args), fused=deepspeed is not None and "optimizer" in deepspeed),
        dataset=Parcel(train_dataset),
        eval_dataset=Parcel(eval_dataset) if evaluates else None,
        collator=data_collator,
        processing_class=processing_class,
        sharding=sharding,
        deepspeed=deepspeed,
        zero_init=model is None or isinstance(model, str),
        compilation=_compilation(args),
        loader_arguments=loader_arguments(_values(args)),
    )
    step = TrainerStep(parts, model_init=model_init)
    values = _planned_values(args)
    plan = planned(
        step.workload(grad_clip_norm=args.max_grad_norm or None, evaluates=evaluates),
        values,
        format_name=_FORMAT,
        options={
            "device": "cpu" if args.use_cpu else None,
            "world_size": args.world_size,
            **options,
        },
    )
    return dataclasses.replace(args, **plan.apply(values, format_name=_FORMAT)), plan


def _values(args: Any) -> dict[str, Any]:
    return {each.name: getattr(args, each.name) for each in dataclasses.fields(args) if each.init}


def _planned_values(args: Any) -> dict[str, Any]:
    """Return the arguments that a plan reads and sets; lengths left at their defaults stay there."""
    values = _values(args)
    defaults = {each.name: each.default for each in dataclasses.fields(args)}
    found = {name: values[name] for name in _ALWAYS}
    found.update({name: values[name] for name in _LENGTHS if values[name] != defaults[name]})
    checkpointing = next(name for name in _CHECKPOINTING if name in values)
    return {**found, checkpointing: bool(values[checkpointing])}


def _refuse_own(trainer_options: Mapping[str, Any]) -> None:
    for name in ("args", *inspect.getfullargspec(tune).kwonlyargs):
        if name in trainer_options:
            hint = f"give it as tune({name}=...)"
            raise UsageError(f"trainer_options has {name!r}, which tune takes itself", hint=hint)


def _refuse_batches_made_in_the_step(trainer_class: type[Any]) -> None:
    """Refuse Trainers whose step is more than a loss of what the loader gives, as TRL's GRPO, which generates texts."""
    if trainer_class._prepare_inputs is not Trainer._prepare_inputs:  # noqa: SLF001 - what its subclasses override
        raise UsageError(
            f"{trainer_class.__name__} makes its batches in the step, by a _prepare_inputs of its own",
            hint=RUN_AS_IT_IS,
        )


def _sharding(args: Any) -> Mapping[str, Any] | None:
    """Return the settings of accelerate's FSDP plugin; None where every card holds the whole model.

    Raises:
        UsageError: the model is sharded by FSDP's first version, or offloaded by FSDP.
    """
    settings: Mapping[str, Any] | None = getattr(args, "fsdp_plugin_args", None)
    if args.fsdp and settings is None:
        raise UsageError(f"fsdp={args.fsdp!r} shards the model by FSDP's first version", hint=_FSDP2)
    if settings is not None and settings["fsdp_version"] != _FSDP_VERSION:
        raise UsageError(f"fsdp_config has version {settings['fsdp_version']}", hint=_FSDP2)
    if settings is not None and settings.get("cpu_offload"):
        raise UsageError(
            "fsdp_config has cpu_offload, and memplan counts what lies on the card", hint="plan without cpu_offload"
        )
    return settings


def _deepspeed(args: Any) -> Mapping[str, Any] | None:
    """Return DeepSpeed's configuration, with what the arguments fill in; None where it does not train.

    Raises:
        UsageError: it fixes what a plan sets, or its optimizer is none of PyTorch's.
    """
    if not args.deepspeed:
        return None
    given = args.deepspeed if isinstance(args.deepspeed, dict) else json.loads(Path(args.deepspeed).read_text("utf-8"))
    fixed = [key for key in _FOLLOWING if get(given, key) not in {None, "auto"}]
    if fixed:
        raise UsageError(
            f"DeepSpeed's configuration fixes {fixed[0]}={get(given, fixed[0])!r}, which a plan may set",
            hint=f'write "auto" for {", ".join(fixed)}: then the Trainer fills in what its arguments say',
        )
    optimizer = get(given, _OPTIMIZER)
    if optimizer not in {None, *_FUSED}:
        raise UsageError(
            f"DeepSpeed's configuration has {_OPTIMIZER}={optimizer!r}, an optimizer of its own",
            hint=f"plan with {' or '.join(_FUSED)}, or leave the optimizer to the arguments",
        )
    found: Mapping[str, Any] = args.hf_deepspeed_config.config
    return found


def _compilation(args: Any) -> Mapping[str, Any] | None:
    """Return the arguments with which accelerate compiles the model, whole; None where it does not."""
    if not args.torch_compile:
        return None
    return {"backend": args.torch_compile_backend.lower(), "mode": args.torch_compile_mode}


def _refuse_sharded(model: Any) -> None:
    """Refuse a model of which this process has a part, as ``from_pretrained`` makes it under stage 3."""
    if hasattr(model, "parameters") and any(len(parts_of(each)) > 1 for each in model.parameters()):
        raise UsageError(
            "DeepSpeed has sharded the model as it was made, and memplan cannot see the whole of it",
            hint="give tune(model_init=...), a function that makes it",
        )


def _refuse_data_parallel(args: Any) -> None:
    if args.n_gpu > 1:
        raise UsageError(
            f"the Trainer would run the model in DataParallel on {args.n_gpu} cards, the first of which holds more",
            hint="start one process a card with torchrun, or show it one card with CUDA_VISIBLE_DEVICES",
        )


class MemplanCallback(TrainerCallback):
    """Compares what the training really takes with its plan after every epoch and at its end; see ``memplan.watch``.

    Args:
        plan: the plan that :func:`tune` returned.
    """

    def __init__(self, plan: Plan) -> None:
        self._watch = watch(plan)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - by interface
        """Compare, and warn the first time that the band is left."""
        self._watch.check()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - by interface
        """Compare the peak of the whole training."""
        self._watch.check()
