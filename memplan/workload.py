"""What is trained, and how a child process gets hold of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.errors import WorkloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from memplan.recipe import Recipe
    from memplan.torch_settings import TorchSettings


_REQUIRED_FUNCTIONS = ("model", "batch", "loss", "optimizer")
_OPTIONAL_FUNCTIONS = (
    "typical_batch",
    "sample_sizes",
    "training_samples",
    "loader",
    "shard",
    "evaluate",
    "evaluation_batch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained: how to make the model, a batch, the loss and the optimizer.

    Args:
        model: a factory; called for the estimate as well as for live trials.
        batch: micro-batch size -> worst-case batch of that many samples, any pytree of tensors, on the CPU.
        loss: forward pass and loss; returns the scalar to call ``backward`` on.
        optimizer: parameters -> optimizer.
        name: shown in reports; None takes the model's class name.
        grad_clip_norm: largest gradient norm; None where gradients are not clipped.
        zero_grad_set_to_none: whether ``zero_grad`` frees the gradients (PyTorch's default) or fills them with zeros.
        zero_grad_before_backward: whether ``zero_grad`` is called between the forward and the backward pass, where the
            old gradients live beside the activations; it is called before the forward pass, or after the step, else.
        zero_grad_after_step: whether it is called right after the optimizer step, so that an evaluation finds none.
        channels_last: whether the model and 4-D inputs use the channels-last memory format.
        ema: whether an exponential moving average of the parameters is kept on the device.
        typical_batch: micro-batch size -> a batch as most are, where ``batch`` is the worst of a varying kind. Both
            alternate in estimates and in the warm-up of live trials, because the allocator keeps blocks of
            each size; trials report its memory and speed beside those of the worst. None, or a function that returns
            None, where all batches are alike.
        sample_sizes: -> how large the samples of the training set are, in any unit, where a batch is padded to its
            largest: with a typical batch, estimates tell what PyTorch's allocator comes to hold in steps on batches
            drawn at random. None where samples are alike, or packed.
        training_samples: -> how many samples the training set has, or None. No larger micro-batch is planned than they
            fill, shared by the replicas. None where they are not counted.
        loader: micro-batch size -> ``DataLoader`` that yields such batches. A live trial times it after all else, and
            plans say where steps would wait for it. None, or a function that returns None, where only ``batch`` is
            known.
        shard: shards the model over the replicas before the optimizer is made, in place as
            ``torch.distributed.fsdp.fully_shard`` does, or by returning the ``FullyShardedDataParallel`` around it;
            takes the model and the recipe, in whose precision it is to compute, as by FSDP's ``MixedPrecisionPolicy``:
            there is no autocast. Called in a process group of the recipe's replicas, of which this one alone runs. None
            where every replica holds the whole model.
        defers_gradient_sync: whether such replicas exchange gradients in the last of a step's passes only, as under
            ``no_sync``; each holds them whole until then.
        deepspeed: DeepSpeed's configuration, as its JSON file has it, by which its engine shards what the replicas
            hold and runs the step: it accumulates, clips and zeroes gradients. ``"auto"`` is what transformers makes of
            it. Batch sizes and precision are the recipe's, in which weights are half and their masters single, and the
            optimizer is the workload's; ``loss`` is given the engine in the place of the model. None where DeepSpeed
            does not train.
        zero_init: whether weights that DeepSpeed shards (stage 3) are so one by one as they are made, as within
            ``deepspeed.zero.Init``; else the whole model reaches the device first.
        evaluate: forward pass of an evaluation between training steps, such as ``loss``: takes the model, in evaluation
            mode, and a batch, and runs without gradients; what it returns is held until the next batch is evaluated.
            None where training is not interrupted.
        evaluation_batch: micro-batch size -> the largest batch that is evaluated, whether or not it has as many
            samples; None where it is as ``batch``.

    Raises:
        WorkloadError: what is to be a function is none, the model is handed over in place of its factory,
            gradients are zeroed at two places, there is an evaluation batch and no evaluation, or DeepSpeed is given
            another form than a mapping, a shard function, or a moving average to keep.
    """

    model: Callable[[], nn.Module]
    batch: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    name: str | None = None
    grad_clip_norm: float | None = None
    zero_grad_set_to_none: bool = True
    zero_grad_before_backward: bool = False
    zero_grad_after_step: bool = False
    channels_last: bool = False
    ema: bool = False
    typical_batch: Callable[[int], Any | None] | None = None
    sample_sizes: Callable[[], Sequence[float]] | None = None
    training_samples: Callable[[], int | None] | None = None
    loader: Callable[[int], Any] | None = None
    shard: Callable[[nn.Module, Recipe], Any] | None = None
    defers_gradient_sync: bool = False
    deepspeed: Mapping[str, Any] | None = None
    zero_init: bool = True
    evaluate: Callable[[nn.Module, Any], Any] | None = None
    evaluation_batch: Callable[[int], Any] | None = None

    def __post_init__(self) -> None:
        """Refuse what would fail in every child process."""
        for role in (*_REQUIRED_FUNCTIONS, *_OPTIONAL_FUNCTIONS):
            given = getattr(self, role)
            if not callable(given) and (given is not None or role in _REQUIRED_FUNCTIONS):
                raise WorkloadError(f"the workload's {role} is of type {type(given).__name__}", hint="give a function")
        if not isinstance(self.model, type) and hasattr(self.model, "parameters"):
            raise WorkloadError(
                f"the workload's model is a {type(self.model).__name__}, not a function that makes one",
                hint="write model=lambda: ..., so that every trial makes its own",
            )
        if self.zero_grad_before_backward and self.zero_grad_after_step:
            raise WorkloadError(
                "the workload has both zero_grad_before_backward and zero_grad_after_step", hint="choose one of them"
            )
        if self.evaluation_batch is not None and self.evaluate is None:
            raise WorkloadError(
                "the workload has an evaluation_batch and no evaluate", hint="say what is done with it: evaluate=loss"
            )
        if self.deepspeed is not None:
            self._check_deepspeed(self.deepspeed)

    @property
    def spans_replicas(self) -> bool:
        """Whether replicas share what a whole one holds, by FSDP or DeepSpeed."""
        return self.shard is not None or self.deepspeed is not None

    @property
    def weights_arrive_sharded(self) -> bool:
        """Whether DeepSpeed shards the weights too (stage 3), one by one as they reach the device."""
        shards = self.deepspeed is not None and self.deepspeed.get("zero_optimization", {}).get("stage") == 3
        return shards and self.zero_init

    def _check_deepspeed(self, config: object) -> None:
        if not isinstance(config, Mapping):
            raise WorkloadError(
                f"the workload's deepspeed is of type {type(config).__name__}",
                hint="give the configuration itself: deepspeed=json.loads(Path('ds_config.json').read_text())",
            )
        if self.shard is not None:
            raise WorkloadError("the workload has both deepspeed and shard", hint="choose one of them")
        if self.ema:
            raise WorkloadError(
                "the workload has both deepspeed and ema, whose average would be of this replica's part",
                hint="leave ema out",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadReference:
    """A workload function named in a config, resolved in the child process that needs it.

    Args:
        target: ``package.module:function``; the function takes the config and returns a :class:`Workload`.
        config: the effective config as plain nested data (dicts, lists, scalars).
        config_path: the file it came from, for messages and for the function's own relative paths.
        search_path: folders tried before ``sys.path``, in order.
    """

    target: str
    config: dict[str, Any]
    config_path: str | None
    search_path: tuple[str, ...]

    @property
    def installed_modules(self) -> tuple[str, ...]:
        """Modules that are no user's and that loading it imports: memplan's own, where it makes the workload."""
        module = self.target.partition(":")[0]
        return (module,) if module.partition(".")[0] == __package__ else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PickledWorkload:
    """A workload made in the caller's process, as cloudpickle bytes.

    Args:
        payload: ``cloudpickle.dumps`` of a :class:`Workload`.
        fingerprint: a digest that is the same for the same workload, in other processes too.
        search_path: the caller's ``sys.path``, so that what was pickled by reference is found again.
        torch_settings: what the caller's process has set; None for torch's defaults.
        installed_modules: modules of installed packages and of memplan that loading it imports.
    """

    payload: bytes
    fingerprint: str
    search_path: tuple[str, ...]
    torch_settings: TorchSettings | None = None
    installed_modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCommand:
    """The user's own training script, started by a command line and left as it is.

    Args:
        template: shell command line with placeholders such as ``{micro_batch_size}``.
        steps: optimizer steps after which a trial ends, at least 3.
        config_path: what ``{config}`` stands for, as the user wrote it; None where there is no config.
        working_folder: where the command is started, absolute.
        config_text: text of the copy that ``{patched_config}`` stands for in a trial; None where it takes none.
    """

    template: str
    steps: int
    config_path: str | None
    working_folder: str
    config_text: str | None = None


WorkloadSource = WorkloadReference | PickledWorkload | TrainingCommand
