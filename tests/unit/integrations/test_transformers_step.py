"""A Trainer's collator, loss and optimizer are used as they are."""

from __future__ import annotations

import copy
import json
import os
import pickle
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from memplan import api
from memplan.devices.resolving import resolve_device
from memplan.errors import UsageError

transformers = pytest.importorskip("transformers", reason="needs memplan[transformers]")
pytest.importorskip("accelerate", reason="needs memplan[transformers]")

from memplan.integrations import transformers as integration  # noqa: E402 - after it is known that it is there
from memplan.integrations import tuning  # noqa: E402
from memplan.integrations.parcels import Parcel  # noqa: E402
from memplan.integrations.transformers import tune  # noqa: E402
from memplan.integrations.transformers_arguments import loader_arguments, step_arguments  # noqa: E402
from memplan.integrations.transformers_step import TrainerParts, TrainerStep  # noqa: E402
from memplan.recipe import Recipe  # noqa: E402
from memplan.torch_releases import release_of  # noqa: E402
from memplan.training.sharding import join_absent_replicas, shard_model  # noqa: E402
from tests import making  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

needs_fsdp2 = pytest.mark.skipif(
    release_of(transformers.__version__) < (5, 20), reason="the Trainer shards by FSDP2 from transformers 5.20 on"
)

LENGTHS = (3, 5, 2, 8, 4, 6, 1, 7, 2, 16, 3, 4)


def make_model() -> Any:
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    )


def samples() -> list[dict[str, Any]]:
    return [{"input_ids": [1] * length, "labels": [1] * length, "text": "a" * length} for length in LENGTHS]


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    width = max(len(row["input_ids"]) for row in rows)
    assert all("text" not in row for row in rows)  # the Trainer removes what the model does not take
    return {
        "input_ids": torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows]),
        "labels": torch.tensor([row["labels"] + [-100] * (width - len(row["labels"])) for row in rows]),
    }


def arrived(
    arguments: Any,
    *,
    model: Any = None,
    trainer_class: type[Any] = transformers.Trainer,
    evaluated: Any = None,
    sharding: Any = None,
    compilation: Any = None,
    **options: Any,
) -> Any:
    """Return the workload as a child process gets it."""
    values = {name: getattr(arguments, name) for name in type(arguments).__dataclass_fields__}
    parts = TrainerParts(
        trainer_class=trainer_class,
        options=Parcel({**options, **({} if model is None else {"model": model})}),
        arguments_class=type(arguments),
        arguments=step_arguments(values),
        dataset=Parcel(samples()),
        collator=padded,
        processing_class=None,
        eval_dataset=None if evaluated is None else Parcel(evaluated),
        sharding=sharding,
        compilation=compilation,
        loader_arguments=loader_arguments(values),
    )
    step = TrainerStep(parts, model_init=make_model if model is None else None)
    return pickle.loads(cloudpickle.dumps(step.workload(grad_clip_norm=1.0, evaluates=evaluated is not None)))


@pytest.fixture
def arguments(tmp_path: Path) -> Any:
    return transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", optim="adamw_torch", learning_rate=0.01, weight_decay=0.1
    )


def test_the_longest_samples_come_first_as_the_trainers_collator_makes_them(arguments: Any) -> None:
    workload = arrived(arguments)
    assert workload.batch(2)["input_ids"].shape == (2, 16)
    assert workload.batch(1)["input_ids"].ne(0).sum() == 16


@pytest.mark.filterwarnings("ignore:.*pin_memory:UserWarning")  # there is no card to copy to
def test_the_loader_is_the_trainers_with_batches_of_a_size(arguments: Any) -> None:
    arguments.dataloader_num_workers = 1
    arguments.dataloader_drop_last = True
    workload = arrived(arguments)
    loader = workload.loader(5)
    assert loader.num_workers == 1
    assert [len(batch["input_ids"]) for batch in loader] == [5, 5]
    assert workload.batch(2)["input_ids"].shape == (2, 16)


def test_the_loss_is_the_trainers_own(arguments: Any) -> None:
    class Doubled(transformers.Trainer):
        def compute_loss(self, *positional: Any, **named: Any) -> Any:
            return 2 * super().compute_loss(*positional, **named)

    plain, doubled = arrived(arguments), arrived(arguments, trainer_class=Doubled)
    batch = plain.batch(1)
    torch.manual_seed(0)
    once = plain.loss(plain.model().eval(), batch)  # without dropout
    twice = doubled.loss(doubled.model().eval(), batch)
    torch.testing.assert_close(twice, 2 * once)


@pytest.mark.parametrize(("interval", "calls"), [(None, 0), (1, 1), (10, 0)])
def test_cached_memory_is_returned_where_the_trainer_does_so_in_every_step(
    arguments: Any, monkeypatch: pytest.MonkeyPatch, interval: int | None, calls: int
) -> None:
    arguments.torch_empty_cache_steps = interval
    workload, called = arrived(arguments), []
    batch, model = workload.batch(1), workload.model()
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: called.append(None))
    workload.loss(model, batch)
    assert len(called) == calls


def test_typical_samples_are_those_of_the_median_length(arguments: Any) -> None:
    step = arrived(arguments).batch.__self__
    assert step.typical_batch(2)["input_ids"].shape == (2, 4)  # lengths 3, 5, 2, 8, 4, 6, 1, 7, 2, 16, 3, 4
    assert max(step.sample_sizes()) == 1.0
    assert len(step.sample_sizes()) == step.training_samples() == len(LENGTHS)


def test_the_model_stays_on_the_device_it_is_moved_to(arguments: Any) -> None:
    """memplan moves it before the batch is made, and a Trainer would move it back to its own device."""

    class Watching(transformers.Trainer):
        def compute_loss(self, *_: Any, **__: Any) -> Any:
            return self.args.device

    workload = arrived(arguments, trainer_class=Watching)
    model = workload.model().to("meta")
    batch = workload.batch(2)
    assert (model.device.type, batch["input_ids"].device.type) == ("meta", "cpu")
    assert workload.loss(model, batch) == torch.device("meta")


def test_what_a_trainer_makes_of_model_and_dataset_itself_is_what_is_trained(arguments: Any) -> None:
    """As TRL's do, which tokenize texts, refuse to go without, and add adapters to a model that has none yet."""

    class Preparing(transformers.Trainer):
        def __init__(self, *, model: Any, train_dataset: Any, **rest: Any) -> None:
            assert not isinstance(model, torch.nn.Sequential)
            rows = [{name: [1] * (2 * len(each["text"])) for name in ("input_ids", "labels")} for each in train_dataset]
            super().__init__(model=torch.nn.Sequential(model), train_dataset=rows, **rest)

        def _set_signature_columns_if_needed(self) -> None:
            self._signature_columns = ["input_ids", "labels"]

        def compute_loss(self, model: Any, inputs: Any, **named: Any) -> Any:
            return super().compute_loss(model[0], inputs, **named)

    workload = arrived(arguments, trainer_class=Preparing)
    batch = workload.batch(2)
    assert batch["input_ids"].shape == (2, 32)  # the longest text has 16 letters
    model = workload.model()
    assert isinstance(model, torch.nn.Sequential)
    short = {name: each[:, :16] for name, each in batch.items()}
    workload.loss(model, short).backward()
    assert len(workload.optimizer(model.parameters()).param_groups) == 2


def test_what_a_trainer_keeps_beside_the_model_moves_with_it(arguments: Any) -> None:
    """As TRL's reference models, and losses that hold the model and a layer of their own, must be on the card."""

    class Distilling(transformers.Trainer):
        def __init__(self, **parts: Any) -> None:
            super().__init__(**parts)
            self.teacher = make_model()
            self.criterion = torch.nn.Sequential(self.model, torch.nn.Linear(2, 2))

    workload = arrived(arguments, trainer_class=Distilling)
    model = workload.model().to("meta")
    trainer = workload.batch.__self__._trainer
    beside = [trainer.teacher, trainer.criterion[1]]
    assert {each.device.type for other in beside for each in other.parameters()} == {"meta"}
    sizes = [sum(each.numel() for each in other.parameters()) for other in (model, trainer.teacher)]
    assert sizes[0] == 2 * sizes[1] + 6  # two weights a row, and its bias


class InTurn(torch.nn.Sequential):
    """Runs its children one after another, as sentence-transformers' models do."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Embedding(32, 4), torch.nn.Linear(4, 32))

    def forward(self, input_ids: Any, labels: Any = None) -> dict[str, Any]:
        return {"logits": super().forward(input_ids)}


def test_a_model_that_runs_all_of_its_children_does_not_run_what_its_trainer_keeps_beside_it(arguments: Any) -> None:
    class WithCriterion(transformers.Trainer):
        def __init__(self, **parts: Any) -> None:
            super().__init__(**parts)
            self.teacher = make_model()
            self.criterion = torch.nn.CrossEntropyLoss()

        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
            return self.criterion(model(**inputs)["logits"].flatten(0, 1), inputs["labels"].flatten())

    workload = arrived(arguments, model=InTurn(), trainer_class=WithCriterion)
    model = workload.model()
    assert [type(each).__name__ for each in model] == ["Embedding", "Linear"]
    assert workload.loss(model, workload.batch(2)) > 0
    teacher = workload.batch.__self__._trainer.teacher
    model.to("meta")
    assert {each.device.type for each in teacher.parameters()} == {"meta"}


def test_what_a_trainer_is_given_beside_the_model_refers_to_the_same_and_travels_without_weights(
    arguments: Any,
) -> None:
    """As the losses of sentence-transformers, which hold the model."""

    class WithLoss(transformers.Trainer):
        def __init__(self, *, loss: Any, **parts: Any) -> None:
            super().__init__(**parts)
            self.loss = loss

    model = make_model()
    loss = torch.nn.ModuleList([model, make_model()])
    workload = arrived(arguments, model=model, trainer_class=WithLoss, loss=loss)
    built = workload.model()
    own, other = workload.batch.__self__._trainer.loss
    assert own is built
    assert not torch.equal(other.transformer.wte.weight, loss[1].transformer.wte.weight)  # noise of that size


def test_a_loss_that_refers_to_the_model_is_computed_with_the_copy_that_is_traced(arguments: Any) -> None:
    class Bound(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, **named: Any) -> Any:
            return super().compute_loss(self.model, inputs, **named)

    workload = arrived(arguments, trainer_class=Bound)
    copied = copy.deepcopy(workload.model())
    workload.loss(copied, workload.batch(1)).backward()
    assert all(each.grad is not None for each in copied.parameters())


def test_an_argument_of_the_trainers_is_told_where_it_goes(arguments: Any) -> None:
    with pytest.raises(UsageError, match=r"tune takes no 'peft_config'; .* trainer_options=dict\(peft_config=\.\.\.\)"):
        tune(arguments, model_init=make_model, train_dataset=samples(), peft_config=None)


def test_an_argument_that_tune_takes_is_not_passed_on_twice(arguments: Any) -> None:
    with pytest.raises(UsageError, match=r"has 'processing_class', which tune takes itself; give it as tune\("):
        tune(arguments, model=make_model(), train_dataset=samples(), trainer_options={"processing_class": None})


def test_a_trainer_that_makes_its_batches_in_the_step_is_refused(arguments: Any) -> None:
    class Generating(transformers.Trainer):
        def _prepare_inputs(self, inputs: Any) -> Any:
            return inputs

    with pytest.raises(UsageError, match=r"Generating makes its batches in the step, .*memplan probe --command"):
        tune(arguments, model=make_model(), train_dataset=samples(), trainer_class=Generating)


def test_a_model_that_its_trainer_loads_by_name_is_trained_on_the_device_it_is_moved_to(arguments: Any) -> None:
    class Loading(transformers.Trainer):
        def __init__(self, model: Any, **options: Any) -> None:
            assert model == "small"
            super().__init__(make_model(), **options)

        def compute_loss(self, *_: Any, **__: Any) -> Any:
            return self.args.device

    workload = arrived(arguments, model="small", trainer_class=Loading)
    model = workload.model().to("meta")
    assert workload.loss(model, workload.batch(2)) == torch.device("meta")


def test_the_optimizer_is_the_one_of_the_arguments_with_decay_where_the_trainer_puts_it(arguments: Any) -> None:
    workload = arrived(arguments)
    model = workload.model()
    optimizer = workload.optimizer(model.parameters())
    assert type(optimizer) is torch.optim.AdamW
    decayed, spared = optimizer.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"], decayed["lr"]) == (0.1, 0.0, 0.01)
    assert any(each is model.transformer.ln_f.weight for each in spared["params"])


def test_a_model_in_evaluation_mode_is_trained_in_training_mode(arguments: Any) -> None:
    assert arrived(arguments, model=make_model().eval()).model().training


def test_only_what_is_trained_gets_an_optimizer(arguments: Any) -> None:
    model = make_model()
    model.transformer.requires_grad_(False)
    model.lm_head.weight = torch.nn.Parameter(torch.zeros(32, 8))  # untied, so that there is something to train
    workload = arrived(arguments, model=model)
    built = workload.model()
    trained = [each for group in workload.optimizer(built.parameters()).param_groups for each in group["params"]]
    assert trained == [built.lm_head.weight]


# peft 0.21 asks transformers 5.23 by an old name
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_of_a_model_with_adapters_theirs_alone_are_trained(arguments: Any) -> None:
    peft = pytest.importorskip("peft", reason="needs peft")

    def make_adapted() -> Any:
        adapters = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
        return peft.get_peft_model(make_model(), adapters)

    workload = arrived(arguments, model=make_adapted())
    model = workload.model()
    optimizer = workload.optimizer(model.parameters())
    trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert trained == {id(each) for name, each in model.named_parameters() if "lora_" in name}
    loss = workload.loss(model, workload.batch(2))
    loss.backward()
    assert {id(each) for each in model.parameters() if each.grad is not None} == trained


def test_outputs_are_fp32_under_autocast_as_accelerate_makes_them(arguments: Any) -> None:
    class Watching(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, **named: Any) -> Any:
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
            model.seen_dtype = outputs["logits"].dtype
            return loss

    workload = arrived(arguments, trainer_class=Watching)
    model = workload.model()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        workload.loss(model, workload.batch(1))
    assert model.seen_dtype == torch.float32
    assert "forward" not in vars(model)


def test_a_forward_pass_that_was_put_on_the_model_itself_stays_there(arguments: Any) -> None:
    workload = arrived(arguments)
    model = workload.model()
    own = model.forward = torch.compiler.disable(model.forward)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        workload.loss(model, workload.batch(1))
    assert model.forward is own


def test_no_model_and_two_are_refused(arguments: Any) -> None:
    with pytest.raises(UsageError, match="either model_init= or model="):
        tune(arguments, train_dataset=samples())


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"version": 1}, "fsdp_config has version 1; plan with fsdp=True"),
        pytest.param({"cpu_offload": True}, "has cpu_offload", marks=needs_fsdp2),
    ],
)
def test_fsdp_is_refused_in_its_first_version_and_where_it_offloads(
    tmp_path: Path, settings: dict[str, Any], problem: str
) -> None:
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, fsdp=True, fsdp_config=settings)
    with pytest.raises(UsageError, match=problem):
        tune(arguments, model_init=make_model, train_dataset=samples())


AUTOMATIC = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
}


def under_deepspeed(folder: Path, config: Any, **settings: Any) -> Any:
    """Arguments that name a DeepSpeed configuration."""
    pytest.importorskip("deepspeed", reason="needs memplan[deepspeed]")
    return transformers.TrainingArguments(str(folder), use_cpu=True, deepspeed=config, **settings)


@pytest.mark.parametrize("as_file", [False, True])
def test_arguments_with_deepspeed_are_planned_by_its_configuration(
    tmp_path: Path, planned_by: Any, as_file: bool
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(AUTOMATIC))
    arguments = under_deepspeed(tmp_path, str(path) if as_file else AUTOMATIC, optim="adafactor")
    workload = planned_by(integration, lambda: tune(arguments, model_init=make_model, train_dataset=samples()))
    assert workload.deepspeed["zero_optimization"] == {"stage": 2, "reduce_bucket_size": "auto"}
    assert workload.shard is None
    (group,) = workload.optimizer(workload.model().parameters()).param_groups[:1]
    assert group["fused"]  # DeepSpeed's own takes the place of the arguments', and has fused kernels


def test_the_arguments_optimizer_is_used_where_deepspeed_has_none(tmp_path: Path, planned_by: Any) -> None:
    config = {name: value for name, value in AUTOMATIC.items() if name != "optimizer"}
    arguments = under_deepspeed(tmp_path, config, optim="sgd")
    workload = planned_by(integration, lambda: tune(arguments, model_init=make_model, train_dataset=samples()))
    assert isinstance(workload.optimizer(workload.model().parameters()), torch.optim.SGD)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"gradient_accumulation_steps": 1}, 'fixes gradient_accumulation_steps=1, .*write "auto" for gradient_accum'),
        ({"optimizer": {"type": "Lion", "params": {"lr": "auto"}}}, r"optimizer\.type='Lion', an optimizer of its own"),
    ],
)
def test_a_deepspeed_configuration_that_no_plan_can_follow_is_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    arguments = under_deepspeed(tmp_path, {**AUTOMATIC, **changes})
    with pytest.raises(UsageError, match=problem):
        tune(arguments, model_init=make_model, train_dataset=samples())


@pytest.mark.parametrize("given", ["model", "model_init"])
def test_a_model_that_was_made_before_reaches_the_device_whole(tmp_path: Path, planned_by: Any, given: str) -> None:
    made = {given: make_model() if given == "model" else make_model}
    arguments = under_deepspeed(tmp_path, {**AUTOMATIC, "zero_optimization": {"stage": 3}})
    workload = planned_by(integration, lambda: tune(arguments, **made, train_dataset=samples()))
    assert workload.weights_arrive_sharded == (given == "model_init")


def test_a_model_that_deepspeed_has_sharded_is_refused(tmp_path: Path) -> None:
    model = make_model()
    next(model.parameters()).ds_tensor = torch.ones(2)  # as ``deepspeed.zero.Init`` leaves it
    with pytest.raises(UsageError, match="DeepSpeed has sharded the model as it was made"):
        tune(under_deepspeed(tmp_path, AUTOMATIC), model=model, train_dataset=samples())


def test_a_trainer_is_made_without_the_deepspeed_that_a_launcher_asks_for(
    arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")

    class Watching(transformers.Trainer):
        def __init__(self, *given: Any, **named: Any) -> None:
            assert "ACCELERATE_USE_DEEPSPEED" not in os.environ
            super().__init__(*given, **named)

    assert arrived(arguments, trainer_class=Watching).model().training
    assert os.environ["ACCELERATE_USE_DEEPSPEED"] == "true"


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # of what compile imports
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of what Dynamo looks at
def test_a_model_that_the_arguments_compile_runs_compiled(arguments: Any) -> None:
    workload = arrived(arguments, compilation={"backend": "eager", "mode": None})
    model = workload.model().eval()  # which drops nothing out
    batch = workload.batch(2)
    torch._dynamo.utils.counters.clear()
    compiled = workload.loss(model, batch)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    model._compiled_call_impl = None
    torch.testing.assert_close(compiled, workload.loss(model, batch))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"torch_compile": True}, {"backend": "inductor", "mode": None}),
        ({"torch_compile_mode": "max-autotune"}, {"backend": "inductor", "mode": "max-autotune"}),
        ({"torch_compile_backend": "AOT_EAGER"}, {"backend": "aot_eager", "mode": None}),
    ],
)
def test_the_model_is_compiled_as_the_arguments_say(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    planned_by: Any,
    settings: dict[str, Any],
    expected: dict[str, Any] | None,
) -> None:
    for name in ("BACKEND", "MODE"):
        monkeypatch.setenv(f"ACCELERATE_DYNAMO_{name}", "no")  # arguments set it for the whole process
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, **settings)
    workload = planned_by(integration, lambda: tune(arguments, model_init=make_model, train_dataset=samples()))
    assert workload.model.__self__._parts.compilation == expected


@needs_fsdp2
def test_arguments_that_shard_are_planned_for_the_replicas_and_stay_as_they_are(
    tmp_path: Path, planned_by: Any
) -> None:
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, fsdp=True)
    workload = planned_by(
        integration, lambda: tune(arguments, model_init=make_model, train_dataset=samples(), world_size=4)
    )
    assert workload.shard is not None
    assert workload.defers_gradient_sync


@needs_fsdp2
@pytest.mark.usefixtures("no_replica_is_left")
@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_sharded_model_is_trained_as_accelerate_prepares_it(tmp_path: Path, checkpoints: bool) -> None:
    config = {"activation_checkpointing": checkpoints}
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, fsdp=True, fsdp_config=config)
    workload = arrived(arguments, sharding=arguments.fsdp_plugin_args)
    join_absent_replicas(2, "cpu")
    model = workload.model()
    shard_model(model, workload.shard, Recipe(micro_batch_size=1, precision="bf16"))
    inner = {type(each).__name__ for each in model.modules() if isinstance(each, FSDPModule)}
    assert {"FSDPGPT2LMHeadModel", "FSDPCheckpointWrapper" if checkpoints else "FSDPGPT2Block"} <= inner
    optimizer = workload.optimizer(model.parameters())
    workload.loss(model, workload.batch(1)).backward()
    held = [each for group in optimizer.param_groups for each in group["params"]]
    assert {id(each) for each in held} == {id(each) for each in model.parameters()}
    assert all(isinstance(each.grad, DTensor) and each.grad.dtype == torch.float32 for each in held)
    assert model.transformer.h[0].get_parameter(
        "_checkpoint_wrapped_module.ln_1.weight" if checkpoints else "ln_1.weight"
    ).to_local().shape == (4,)


def test_the_plan_is_set_in_a_copy_of_the_arguments_as_if_they_had_been_made_so(
    arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = Recipe(micro_batch_size=8, learning_rate=0.01)
    chosen = Recipe(micro_batch_size=16, accumulation_steps=2, precision="bf16", learning_rate=0.04)
    monkeypatch.setattr(integration, "planned", lambda *_, **__: making.plan(current, chosen))
    arguments.max_steps = 1000
    changed, plan = tune(arguments, model_init=make_model, train_dataset=samples())
    assert plan.recipe == chosen
    assert (changed.per_device_train_batch_size, changed.gradient_accumulation_steps) == (16, 2)
    assert (changed.learning_rate, changed.max_steps) == (0.04, 250)
    assert changed.save_steps == arguments.save_steps  # left at its default
    assert (changed.bf16, changed.mixed_precision) == (True, "bf16")
    assert (arguments.per_device_train_batch_size, arguments.bf16) == (8, False)


@pytest.mark.parametrize(("use_cpu", "expected"), [(True, ["fp32", "bf16"]), (False, ["fp32"])])
def test_precisions_are_those_that_the_arguments_accept_on_a_cpu(
    use_cpu: bool, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}
    recipe = Recipe(micro_batch_size=8, learning_rate=5e-5)

    def plan(*_: Any, **options: Any) -> Any:
        asked.update(options)
        return making.plan(recipe, recipe)

    monkeypatch.setattr(api, "plan", plan)
    monkeypatch.setattr(tuning, "resolve_device", lambda _: resolve_device("cpu"))
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=use_cpu, report_to="none")
    tune(arguments, model=make_model(), train_dataset=samples())
    assert asked["precision"] == expected
    assert (asked["device"], asked["world_size"]) == ("cpu" if use_cpu else None, 1)


def test_a_model_spread_over_cards_by_one_process_is_refused(tmp_path: Path) -> None:
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    arguments._n_gpu = 2
    with pytest.raises(UsageError, match=r"DataParallel on 2 cards, .*torchrun"):
        tune(arguments, model_init=make_model, train_dataset=samples())


def evaluating(tmp_path: Path, **changes: Any) -> Any:
    return transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", per_device_eval_batch_size=3, **changes
    )


def score(_: Any, compute_result: bool = True) -> dict[str, float]:
    return {}


def test_gradients_are_zeroed_after_the_step_as_in_the_trainers_own_loop(arguments: Any) -> None:
    seen = []

    class Watching(transformers.Trainer):
        def evaluate(self, *_: object, **__: object) -> Any:
            seen.append(any(each.grad is not None for each in self.model.parameters()))
            return {}

    arguments.max_steps = 1
    arguments.eval_strategy = transformers.IntervalStrategy.STEPS
    arguments.eval_steps = 1
    data = {"train_dataset": samples(), "eval_dataset": samples()}
    Watching(make_model(), arguments, data_collator=padded, **data).train()
    assert set(seen) == {False}
    assert arrived(arguments).zero_grad_after_step


@pytest.mark.parametrize("several", [False, True])
def test_what_is_evaluated_are_the_longest_samples_of_the_evaluation_dataset(several: bool, tmp_path: Path) -> None:
    evaluated = {"short": samples()[:9], "long": samples()[9:]} if several else samples()
    workload = arrived(evaluating(tmp_path), evaluated=evaluated)
    assert workload.evaluation_batch(7)["input_ids"].shape == (3, 16)


def test_where_only_the_loss_is_wanted_nothing_else_is_kept(tmp_path: Path) -> None:
    workload = arrived(evaluating(tmp_path), evaluated=samples())
    assert workload.evaluate(workload.model(), workload.evaluation_batch(7)).dim() == 0


@pytest.mark.parametrize(
    ("changes", "kept"),
    [({}, 12), ({"eval_accumulation_steps": 2}, 6), ({"batch_eval_metrics": True}, 3)],
    ids=["all", "of two batches", "of one"],
)
def test_logits_for_metrics_are_kept_until_they_leave_the_device(
    changes: dict[str, Any], kept: int, tmp_path: Path
) -> None:
    workload = arrived(evaluating(tmp_path, **changes), evaluated=samples(), compute_metrics=score)
    loss, logits, labels = workload.evaluate(workload.model(), workload.evaluation_batch(7))
    assert (loss.shape, logits.shape, labels.shape) == ((), (kept, 16, 32), (kept, 16))


def test_logits_are_reduced_as_the_trainer_reduces_them(tmp_path: Path) -> None:
    workload = arrived(
        evaluating(tmp_path),
        evaluated=samples(),
        compute_metrics=score,
        preprocess_logits_for_metrics=lambda logits, _: logits.argmax(-1),
    )
    _, predictions, _ = workload.evaluate(workload.model(), workload.evaluation_batch(7))
    assert (predictions.shape, predictions.dtype) == ((12, 16), torch.int64)


@pytest.mark.parametrize(
    ("strategy", "dataset", "expected"), [("steps", samples(), True), ("no", samples(), False), ("steps", None, False)]
)
def test_evaluation_counts_where_the_trainer_would_evaluate(
    strategy: str, dataset: Any, expected: bool, tmp_path: Path, planned_by: Any
) -> None:
    arguments = evaluating(tmp_path, eval_strategy=strategy, eval_steps=5)
    data = {"train_dataset": samples(), "eval_dataset": dataset}
    workload = planned_by(integration, lambda: tune(arguments, model_init=make_model, **data))
    assert (workload.evaluate is not None) == expected
