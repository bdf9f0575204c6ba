"""A LightningModule is driven as Lightning's own loop would."""

from __future__ import annotations

import pickle
import warnings
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from memplan.errors import UsageError, WorkloadError

lightning = pytest.importorskip("lightning.pytorch", reason="needs memplan[lightning]")

from lightning.pytorch import callbacks  # noqa: E402 - after it is known that Lightning is there

from memplan.integrations import lightning as integration  # noqa: E402
from memplan.integrations.lightning import tune  # noqa: E402
from memplan.integrations.lightning_step import LightningStep  # noqa: E402
from memplan.integrations.parcels import Parcel  # noqa: E402
from memplan.planning.subject import subject_of_workload  # noqa: E402
from memplan.recipe import Recipe  # noqa: E402
from tests import making  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


class Sequences(Dataset[Any]):
    """Twenty sequences; the one at 10 is the longest."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(9 if index == 10 else 1 + index % 3, 4)


class Data(lightning.LightningDataModule):
    def __init__(self, batch_size: int = 2) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        self.sequences = Sequences()

    def train_dataloader(self) -> Any:
        return DataLoader(self.sequences, self.batch_size, collate_fn=nn.utils.rnn.pad_sequence, num_workers=2)

    def on_after_batch_transfer(self, batch: torch.Tensor, dataloader_idx: int) -> torch.Tensor:
        return batch * 2


class Loaders(Data):
    """Several loaders of sequences, which differ in length or not."""

    def __init__(self, **differ: bool) -> None:
        super().__init__()
        self.differ = differ

    def train_dataloader(self) -> Any:
        samples = {True: self.sequences, False: [torch.ones(5, 4)]}
        return {
            name: DataLoader(samples[differ], 2, collate_fn=nn.utils.rnn.pad_sequence)
            for name, differ in self.differ.items()
        }


class Net(lightning.LightningModule):
    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = self.net(batch).sum() + self.trainer.max_epochs
        self.log("loss", loss)
        return {"loss": loss}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(
            [{"params": [self.net.bias], "weight_decay": 0.0}, {"params": [self.net.weight]}], self.lr
        )
        warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warm_up, "interval": "step"}}


class Configured(Net):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def configure_optimizers(self) -> Any:
        one, other = (torch.optim.SGD(each.parameters(), 0.1) for each in (self.net, self.net))
        schedulers = [torch.optim.lr_scheduler.ConstantLR(one)]
        forms = {
            "one": one,
            "list": [one],
            "pair": ([one], schedulers),
            "dicts": [{"optimizer": one}],
            "two": [one, other],
            "two in a pair": ([one, other], []),
            "none": None,
        }
        return forms[self.form]


def arrived(module: Any, data: Any, **settings: Any) -> Any:
    """Return the workload as a child process gets it."""
    packed = None if data is None else Parcel(data)
    step = LightningStep(
        Parcel(module), packed, module_type=type(module), batch_arg_name="batch_size", settings=settings
    )
    return pickle.loads(cloudpickle.dumps(step.workload(grad_clip_norm=None, evaluates=True)))


class Validated(Data):
    """Validates on loaders of these batch sizes."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes

    def val_dataloader(self) -> Any:
        return [DataLoader(self.sequences, size, collate_fn=nn.utils.rnn.pad_sequence) for size in self.sizes]


class Validating(Net):
    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        self.log("val_loss", self.net(batch).sum())
        return self.trainer.validating, self.trainer.training, self.trainer.state.stage, batch.shape


class ValidatingOnSeveral(Validating):
    def validation_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int) -> Any:
        return dataloader_idx


def test_the_batch_is_collated_from_the_largest_samples_by_the_users_own_loader() -> None:
    batch = arrived(Net(), Data()).batch(3)
    assert [tuple(each.shape) for each in batch.tensors] == [(9, 3, 4)]  # longest, samples, features


def test_the_loader_is_the_users_own_with_batches_of_a_size() -> None:
    loader = arrived(Net(), Data()).loader(5)
    assert (loader.batch_size, loader.num_workers) == (5, 2)
    assert next(iter(loader)).shape == (3, 5, 4)


def test_several_loaders_are_not_resized() -> None:
    assert arrived(Net(), Loaders(a=True, b=False)).loader(5) is None


def test_the_step_runs_with_the_modules_hooks_and_what_it_asks_its_trainer() -> None:
    workload = arrived(Net(), Data(), max_epochs=7)
    model = workload.model()
    nn.init.ones_(model.net.weight)
    nn.init.zeros_(model.net.bias)
    loss = workload.loss(model, workload.batch(1))
    assert float(loss.detach()) == 9 * 4 * 2 + 7  # nine times four ones, doubled by the transfer hook; epochs


def test_the_optimizer_is_the_modules_own_over_the_given_parameters_before_its_warm_up() -> None:
    workload = arrived(Net(lr=0.5), Data())
    workload.model()
    given = nn.Linear(4, 1)
    bias, weight = workload.optimizer(given.parameters()).param_groups
    assert bias["params"][0] is given.bias
    assert weight["params"][0] is given.weight
    assert (bias["lr"], weight["lr"]) == (0.5, 0.5)


@pytest.mark.parametrize("form", ["one", "list", "pair", "dicts"])
def test_every_form_of_one_optimizer_is_understood(form: str) -> None:
    assert isinstance(arrived(Configured(form), Data()).model(), Configured)


@pytest.mark.parametrize(("form", "count"), [("two", "2"), ("two in a pair", "2"), ("none", "no")])
def test_any_other_number_of_optimizers_is_refused(form: str, count: str) -> None:
    with pytest.raises(WorkloadError, match=f"configure_optimizers returned {count} optimizers"):
        arrived(Configured(form), Data()).model()


@pytest.mark.parametrize(("benchmark", "is_on"), [(True, True), (False, False), (None, False)])
def test_cudnns_benchmark_mode_is_the_trainers(
    benchmark: bool | None, is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    arrived(Net(), Data(), benchmark=benchmark).model()
    assert torch.backends.cudnn.benchmark is is_on


@pytest.mark.parametrize(("deterministic", "mode"), [("warn", 1), (True, 2), (False, 0), (None, 0)])
def test_algorithms_are_as_deterministic_as_the_trainers(
    deterministic: bool | str | None, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    try:
        arrived(Net(), Data(), deterministic=deterministic).model()
        assert torch.get_deterministic_debug_mode() == mode
        assert torch.backends.cudnn.benchmark is not bool(deterministic)
    finally:
        torch.set_deterministic_debug_mode(0)


def test_a_step_without_a_loss_is_refused() -> None:
    class Silent(Net):
        def training_step(self, batch: torch.Tensor) -> None:
            return None

    workload = arrived(Silent(), Data())
    with pytest.raises(WorkloadError, match="training_step returned NoneType where a loss is expected"):
        workload.loss(workload.model(), workload.batch(1))


def test_the_typical_batch_is_collated_from_samples_of_the_median_length() -> None:
    step = arrived(Net(), Data()).batch.__self__
    assert [tuple(each.shape) for each in step.typical_batch(3).tensors] == [(2, 3, 4)]  # lengths 1, 2, 3 and one 9
    assert sorted(step.sample_sizes()) == [1 / 9] * 7 + [2 / 9] * 6 + [3 / 9] * 6 + [1.0]


@pytest.mark.parametrize(
    ("differ", "lengths", "sizes_known"),
    [
        ({"a": True, "b": False}, {"a": 2, "b": 5}, 20),
        ({"a": True, "b": True}, {"a": 2, "b": 2}, 0),  # which of both makes a step large is not known
        ({"b": False}, None, 0),
    ],
    ids=["one", "two", "none"],
)
def test_of_several_loaders_those_whose_samples_differ_make_a_typical_batch(
    differ: dict[str, bool], lengths: dict[str, int] | None, sizes_known: int
) -> None:
    step = arrived(Net(), Loaders(**differ)).batch.__self__
    batch = step.typical_batch(1)
    assert (batch and {name: each.shape[0] for name, each in batch.unpacked().items()}) == lengths
    assert len(step.sample_sizes()) == sizes_known


def test_a_plain_dataloader_and_several_of_them_will_do() -> None:
    loader = DataLoader(Sequences(), 2, collate_fn=nn.utils.rnn.pad_sequence)
    assert arrived(Net(), loader).batch(2).tensors[0].shape == (9, 2, 4)
    assert set(arrived(Net(), Loaders(a=True, b=True)).batch(1).unpacked()) == {"a", "b"}


def test_the_samples_of_one_loader_are_counted_and_those_of_several_are_not() -> None:
    assert arrived(Net(), Data()).training_samples() == 20
    assert arrived(Net(), Loaders(a=True, b=True)).training_samples() is None


def test_a_module_that_optimizes_by_hand_is_refused_before_anything_is_built() -> None:
    class ByHand(Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(UsageError, match=r"ByHand optimizes manually.*memplan probe --command"):
        tune({}, ByHand(), datamodule=Data())


@pytest.mark.parametrize("as_list", [True, False])
def test_a_schedule_of_accumulation_is_refused_with_the_most_it_comes_to(as_list: bool) -> None:
    """Gradients are held from one pass to the next where it accumulates, which the plan would not know of."""
    scheduler = lightning.callbacks.GradientAccumulationScheduler({0: 8, 4: 2})
    with pytest.raises(UsageError, match="accumulate_grad_batches=8 in its place"):
        tune({"callbacks": [scheduler] if as_list else scheduler}, Net(), datamodule=Data())


def test_a_missing_batch_size_is_refused() -> None:
    with pytest.raises(UsageError, match="attribute or hyper-parameter 'bs'"):
        tune({}, Net(), datamodule=Data(), batch_arg_name="bs")


def test_the_plan_is_set_on_datamodule_and_module_and_in_the_trainers_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current = Recipe(micro_batch_size=2, learning_rate=0.1)
    chosen = Recipe(micro_batch_size=8, accumulation_steps=2, precision="bf16", learning_rate=0.8)
    monkeypatch.setattr(integration, "planned", lambda *_, **__: making.plan(current, chosen))
    module, data, callbacks = Net(lr=0.1), Data(batch_size=2), [object()]
    settings, plan = tune({"max_steps": 800, "callbacks": callbacks}, module, datamodule=data)
    assert (data.batch_size, module.lr, plan.recipe) == (8, 0.8, chosen)
    assert settings == {
        "max_steps": 100,  # as many samples in steps of eight times as many
        "callbacks": callbacks,
        "precision": "bf16-mixed",
        "accumulate_grad_batches": 2,
    }


@pytest.mark.parametrize(("size", "is_said"), [(2, True), (8, False)])
def test_a_loader_that_does_not_make_batches_of_the_planned_size_is_warned_of(
    size: int, is_said: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # where the callback keeps what it has compared
    callback = integration.MemplanCallback(making.plan(Recipe(micro_batch_size=2), Recipe(micro_batch_size=8)))
    loader = DataLoader(Sequences(), size, collate_fn=nn.utils.rnn.pad_sequence)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_steps=1, accelerator="cpu", callbacks=[callback], **quiet)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.fit(Net(), loader)
    assert any("batches of 2; 8 are planned" in str(each.message) for each in said) is is_said


def test_what_is_asked_for_says_what_the_trainers_arguments_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def planned(workload: Any, values: Any, **further: Any) -> Any:
        asked.update(workload=workload, values=values, **further)
        return making.plan(Recipe(micro_batch_size=2, learning_rate=0.1), Recipe(micro_batch_size=2, learning_rate=0.1))

    monkeypatch.setattr(integration, "planned", planned)
    given = {"accelerator": "cpu", "devices": 2, "num_nodes": 3, "gradient_clip_val": 0.5, "precision": 32}
    tune(given, Net(lr=0.1), datamodule=Data(batch_size=2), max_util=0.7)
    assert asked["options"] == {"device": "cpu", "world_size": 6, "max_util": 0.7}
    assert asked["values"]["data"] == {"batch_size": 2}
    assert asked["workload"].grad_clip_norm == 0.5


@pytest.mark.parametrize(
    ("devices", "device", "world_size"),
    [("2, 5", "cuda:2", 2), ("3,", "cuda:3", 1), ([1, 0, 2], "cuda:1", 3), ("2", "cuda", 2), (2, "cuda", 2)],
)
def test_cards_may_be_named_one_by_one(devices: Any, device: str, world_size: int) -> None:
    settings = {"accelerator": "gpu", "devices": devices}
    assert (integration._device(settings), integration._world_size(settings)) == (device, world_size)


@pytest.mark.parametrize(
    ("callbacks", "is_counted"),
    [
        ([callbacks.EarlyStopping("loss"), callbacks.EMAWeightAveraging()], True),
        (callbacks.WeightAveraging(), True),
        ([callbacks.StochasticWeightAveraging(swa_lrs=0.1, device=None)], True),
        ([callbacks.StochasticWeightAveraging(swa_lrs=0.1)], False),  # kept on the CPU
        (None, False),
    ],
)
def test_the_average_that_a_callback_keeps_on_the_device_is_counted(
    callbacks: Any, is_counted: bool, planned_by: Any
) -> None:
    settings = {"accelerator": "cpu", "callbacks": callbacks}
    workload = planned_by(integration, lambda: tune(settings, Net(lr=0.1), datamodule=Data(batch_size=2)))
    assert workload.ema is is_counted


def test_the_same_module_is_known_again_whatever_its_weights_are_and_another_is_not() -> None:
    def digest(module: Any) -> str:
        step = LightningStep(
            Parcel(module), Parcel(Data()), module_type=type(module), batch_arg_name="batch_size", settings={}
        )
        workload = step.workload(grad_clip_norm=None)
        return subject_of_workload(workload, Recipe(micro_batch_size=1), ()).source.fingerprint

    wider = Net()
    wider.net = nn.Linear(4, 2)
    assert digest(Net()) == digest(Net())
    assert digest(Net()) != digest(wider)
    assert digest(Net()) != digest(Net(lr=0.2))


def test_gradients_are_zeroed_between_forward_and_backward_pass_as_in_lightnings_own_closure() -> None:
    seen = []

    class Watching(Net):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            seen.append(self.net.weight.grad is not None)
            return super().training_step(batch, batch_idx)

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Lightning recommends
        trainer.fit(Watching(), datamodule=Data())
    assert seen == [False, True]  # the second forward pass finds those of the first step
    assert arrived(Net(), Data()).zero_grad_before_backward


@pytest.mark.parametrize(
    ("sizes", "validated"),
    [((3,), 3), ((2,), 7), ((3, 5), 5)],
    ids=["a size of its own", "the size of training", "the largest of several"],
)
def test_validation_is_of_the_largest_batch_of_its_loaders(sizes: tuple[int, ...], validated: int) -> None:
    (tensor,) = arrived(Validating(), Validated(*sizes)).evaluation_batch(7).tensors
    assert tuple(tensor.shape) == (9, validated, 4)


def test_the_validation_step_runs_with_hooks_and_the_trainer_validating() -> None:
    workload = arrived(Validating(), Validated(3))
    model, batch = workload.model(), workload.evaluation_batch(2)
    assert workload.evaluate(model, batch) == (True, False, "validate", (9, 3, 4))
    assert (model.trainer.validating, model.trainer.training, model.trainer.state.stage) == (False, True, "train")


def test_a_step_for_several_loaders_is_told_which() -> None:
    workload = arrived(ValidatingOnSeveral(), Validated(3, 5))
    assert workload.evaluate(workload.model(), workload.evaluation_batch(2)) == 0


def test_a_module_validates_on_its_own_loader_where_the_data_is_a_loader() -> None:
    class Own(Validating):
        def val_dataloader(self) -> Any:
            return DataLoader(Sequences(), 3, collate_fn=nn.utils.rnn.pad_sequence)

    workload = arrived(Own(), DataLoader(Sequences(), 2, collate_fn=nn.utils.rnn.pad_sequence))
    workload.model()
    assert tuple(workload.evaluation_batch(2).tensors[0].shape) == (9, 3, 4)


@pytest.mark.parametrize(
    ("module", "data", "settings", "expected"),
    [
        (Validating(), Validated(3), {}, True),
        (Net(), Validated(3), {}, False),
        (Validating(), Data(), {}, False),
        (Validating(), Validated(3), {"limit_val_batches": 0}, False),
    ],
    ids=["both", "no step", "no data", "switched off"],
)
def test_evaluation_counts_where_the_trainer_would_validate(
    module: Any, data: Any, settings: dict[str, Any], expected: bool, planned_by: Any
) -> None:
    workload = planned_by(integration, lambda: tune({"accelerator": "cpu", **settings}, module, datamodule=data))
    assert (workload.evaluate is not None) == expected


def test_validation_data_is_looked_through_once_however_often_it_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = arrived(Validating(), Validated(3))
    first, read = workload.evaluation_batch(2), []
    own = Sequences.__getitem__
    monkeypatch.setattr(Sequences, "__getitem__", lambda self, index: read.append(index) or own(self, index))
    again = workload.evaluation_batch(2)
    assert torch.equal(first.tensors[0], again.tensors[0])
    assert len(read) == 3  # the samples of the batch
