"""A Runner's config is built by mmengine's own registries and driven through train_step."""

from __future__ import annotations

import pickle
import random
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from memplan.configs.workloads import load_workload
from memplan.errors import UsageError, WorkloadError

with warnings.catch_warnings():
    # mmengine 0.10 uses torch.jit.script, which torch 2.13 calls deprecated
    warnings.filterwarnings("ignore", message=r".*torch\.jit\.script", category=DeprecationWarning)
    mmengine = pytest.importorskip("mmengine", reason="needs memplan[mmengine]")
    pytest.importorskip("mmengine.runner", reason="needs memplan[mmengine]")

from mmengine.config import Config
from mmengine.hooks import EMAHook
from mmengine.logging import MessageHub
from mmengine.model import BaseModel, ImgDataPreprocessor
from mmengine.optim import OptimWrapper
from mmengine.registry import DATASETS, HOOKS, MODELS
from mmengine.structures import BaseDataElement

from memplan.integrations import mmengine as integration
from memplan.integrations.mmengine import tune
from memplan.integrations.mmengine_step import Registered, RunnerStep
from memplan.integrations.parcels import Parcel
from memplan.probe.journal import Journal
from memplan.recipe import Recipe
from memplan.units import MIB
from memplan.worst_case import notes_on_samples
from tests import making
from tests.making import config_of, stored


@MODELS.register_module(name="MemplanToyNet")
class ToyNet(BaseModel):
    def __init__(self, updates: int = 1, data_preprocessor: Any = None) -> None:
        super().__init__(data_preprocessor)
        self.head = nn.Linear(3, 1)
        self.updates = updates

    def forward(self, inputs: torch.Tensor, data_samples: Any, mode: str) -> Any:
        if mode == "predict":
            return [self.head(inputs.mean((2, 3)))]
        target = torch.stack([each.label for each in data_samples])
        return {"loss": (self.head(inputs.mean((2, 3))).sum(1) - target).square().mean()}

    def train_step(self, data: Any, optim_wrapper: Any) -> Any:
        for _ in range(self.updates):
            logged = super().train_step(data, optim_wrapper)
        return logged


@MODELS.register_module(name="MemplanCompletingNet")
class CompletingNet(ToyNet):
    """As mmpretrain's classifiers, which settle their preprocessor's type themselves."""

    made = 0

    def __init__(self, data_preprocessor: dict[str, Any]) -> None:
        super().__init__(data_preprocessor={"type": "ImgDataPreprocessor", **data_preprocessor})
        CompletingNet.made += 1


@MODELS.register_module(name="MemplanDrawingPreprocessor")
class DrawingPreprocessor(ImgDataPreprocessor):
    """As those of YOLOX: every few iterations it draws the size to which it resizes batches from then on."""

    def __init__(self, largest: int = 9, interval: int = 10) -> None:
        super().__init__()
        self.largest, self.interval = largest, interval
        self.drawn: int | None = None

    def forward(self, data: Any, training: bool = False) -> Any:
        made = super().forward(data, training)
        if training and self.drawn:
            made["inputs"] = nn.functional.interpolate(made["inputs"].float(), size=self.drawn)
        if (MessageHub.get_current_instance().get_info("iter") + 1) % self.interval == 0:
            self.drawn = random.randint(5, self.largest)  # noqa: S311 - sizes, and no secrets
        return made


@MODELS.register_module(name="MemplanGrowingPreprocessor")
class GrowingPreprocessor(ImgDataPreprocessor):
    """Progressive resizing: nothing is drawn."""

    def forward(self, data: Any, training: bool = False) -> Any:
        made = super().forward(data, training)
        size = 8 + MessageHub.get_current_instance().get_info("iter") // 100
        made["inputs"] = nn.functional.interpolate(made["inputs"].float(), size=size)
        return made


@MODELS.register_module(name="MemplanMixingPreprocessor")
class MixingPreprocessor(ImgDataPreprocessor):
    """Draws in every iteration, but no size."""

    calls = 0

    def forward(self, data: Any, training: bool = False) -> Any:
        MixingPreprocessor.calls += 1
        made = super().forward(data, training)
        made["inputs"] = made["inputs"] * np.random.beta(0.2, 0.2)
        return made


@DATASETS.register_module(name="MemplanToys")
class Toys:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        size = 8 if index == 6 else 4
        image = torch.full((3, size, size), 2, dtype=torch.uint8)
        return {"inputs": image, "data_samples": BaseDataElement(label=torch.tensor(1.0))}


def config(**changes: Any) -> Config:
    found = Config(
        {
            "model": {"type": "MemplanToyNet"},
            "data_preprocessor": {"type": "ImgDataPreprocessor", "mean": [1.0] * 3, "std": [0.5] * 3},
            "train_dataloader": {
                "batch_size": 2,
                "num_workers": 2,
                "persistent_workers": True,
                "dataset": {"type": "MemplanToys"},
                "sampler": {"type": "DefaultSampler", "shuffle": True},
            },
            "optim_wrapper": {
                "type": "AmpOptimWrapper",
                "loss_scale": "dynamic",
                "accumulative_counts": 4,
                "optimizer": {"type": "SGD", "lr": 0.1},
                "paramwise_cfg": {"bias_lr_mult": 2.0},
            },
        }
    )
    found.merge_from_dict(changes)
    return found


def arrived(cfg: Config) -> Any:
    """Return the workload as a child process gets it."""
    step = RunnerStep(Parcel((cfg, Registered(modules=(), classes=()))), modules=())
    return pickle.loads(cloudpickle.dumps(step.workload(grad_clip_norm=None, evaluates=True)))


@pytest.mark.parametrize(
    ("environment", "is_on"), [({"cudnn_benchmark": True}, True), ({"cudnn_benchmark": False}, False), (None, False)]
)
def test_cudnns_benchmark_mode_is_the_runners(
    environment: dict[str, bool] | None, is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    arrived(config(env_cfg=environment)).model()
    assert torch.backends.cudnn.benchmark is is_on


@pytest.mark.parametrize(
    ("lengths", "epochs", "iterations"), [({"max_epochs": 3}, 3, 18), ({"max_iters": 40}, 1, 40), (None, 1, 6)]
)
def test_who_asks_how_far_training_is_learns_that_it_starts(
    lengths: dict[str, int] | None, epochs: int, iterations: int
) -> None:
    MessageHub.get_current_instance().runtime_info.clear()
    arrived(config(train_cfg=lengths))
    told = MessageHub.get_current_instance().get_info
    assert [told(each) for each in ("loop_stage", "epoch", "iter")] == ["train", 0, 0]
    assert (told("max_epochs"), told("max_iters")) == (epochs, iterations)


def test_the_batch_is_preprocessed_and_made_of_the_largest_samples() -> None:
    batch = arrived(config()).batch(2).unpacked()
    assert batch["inputs"].shape == (2, 3, 8, 8)
    assert float(batch["inputs"].max()) == 2.0  # (2 - 1) / 0.5
    assert [float(each.label) for each in batch["data_samples"]] == [1.0, 1.0]


def test_a_preprocessor_is_the_one_that_its_model_completes_which_is_not_made_for_it() -> None:
    cfg = config(model={"type": "MemplanCompletingNet"})
    del cfg.data_preprocessor["type"]
    before = CompletingNet.made
    assert float(arrived(cfg).batch(2).unpacked()["inputs"].max()) == 2.0  # (2 - 1) / 0.5
    assert CompletingNet.made == before
    assert type(arrived(cfg).model().data_preprocessor).__name__ == "ImgDataPreprocessor"


def test_the_loader_is_the_runners_with_batches_of_a_size() -> None:
    workload = arrived(config())
    loader = workload.loader(3)
    assert (loader.batch_size, loader.num_workers, loader.persistent_workers) == (3, 2, True)
    assert len(next(iter(loader))["inputs"]) == 3
    assert len(loader.dataset) == workload.training_samples() == 12


def test_the_typical_batch_is_of_images_of_the_median_size() -> None:
    step = arrived(config()).batch.__self__
    assert step.typical_batch(2).unpacked()["inputs"].shape == (2, 3, 4, 4)
    assert min(step.sample_sizes()) < max(step.sample_sizes()) == 1.0


def drawing(**settings: Any) -> Any:
    preprocessor = {"type": "MemplanDrawingPreprocessor", **settings}
    return arrived(config(data_preprocessor={"_delete_": True, **preprocessor}, train_cfg={"max_iters": 400}))


def sides(batch: Any) -> tuple[int, ...]:
    return tuple(batch.unpacked()["inputs"].shape[2:])


@pytest.mark.parametrize("interval", [1, 10, 50])
def test_batches_are_of_the_largest_size_that_is_drawn_in_the_course_of_training(interval: int) -> None:
    workload = drawing(interval=interval)
    # the largest image has sides of 8
    assert [sides(workload.batch(size)) for size in (1, 3, 16)] == [(9, 9)] * 3
    assert sides(workload.typical_batch(2))[0] in (6, 7, 8)
    assert workload.sample_sizes() == ()  # they do not tell the sizes of batches
    (note,) = notes_on_samples(workload.batch)
    assert "planned are batches of 3 x 9 x 9, and typical ones of 3 x " in note


def test_drawn_sizes_are_the_same_in_every_process_and_change_nothing_there() -> None:
    random.seed(3)
    states = random.getstate(), torch.get_rng_state()
    first = drawing()
    (note,) = notes_on_samples(first.batch)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert MessageHub.get_current_instance().get_info("iter") == 0
    random.seed(4)
    second = drawing()
    assert notes_on_samples(second.batch) == (note,)
    assert sides(first.typical_batch(2)) == sides(second.typical_batch(2))


def test_smaller_sizes_that_are_drawn_leave_the_first_one_the_worst() -> None:
    workload = drawing(largest=6)
    assert sides(workload.batch(2)) == (8, 8)
    assert sides(workload.typical_batch(2))[0] in (5, 6)


def test_batches_that_grow_with_the_iteration_are_those_of_the_end_of_training() -> None:
    growing = {"_delete_": True, "type": "MemplanGrowingPreprocessor"}
    workload = arrived(config(data_preprocessor=growing, train_cfg={"max_iters": 401}))
    assert sides(workload.batch(2)) == (12, 12)  # 8 + 400 // 100


@pytest.mark.parametrize("kind", ["ImgDataPreprocessor", "MemplanMixingPreprocessor"])
def test_nothing_is_said_of_a_preprocessor_that_draws_no_sizes(kind: str) -> None:
    MixingPreprocessor.calls = 0
    workload = arrived(config(data_preprocessor={"_delete_": True, "type": kind}))
    assert notes_on_samples(workload.batch) == ()
    assert MixingPreprocessor.calls < 100
    assert sides(workload.typical_batch(2)) == (4, 4)  # of the median sample
    assert max(workload.sample_sizes()) == 1.0


def test_a_package_that_cannot_be_imported_is_named_with_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memplan_broken").mkdir()
    (tmp_path / "memplan_broken" / "__init__.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    broken = config(default_scope="memplan_broken", model={"type": "TheirNet"})
    with pytest.raises(
        WorkloadError, match=r"importing memplan_broken.*no_such_package'; without it, TheirNet is not in .* registry$"
    ):
        arrived(broken).model()


@DATASETS.register_module(name="MemplanFiles")
class Files(Toys):
    """One sample a file, after a list of them."""

    def __init__(self, listed: str) -> None:
        self.listed = Path(listed).read_text(encoding="utf-8").split()

    def __getitem__(self, index: int) -> dict[str, Any]:
        Path(self.listed[0]).read_bytes()
        return super().__getitem__(index)


def test_data_that_are_missing_are_named_with_the_key_of_the_config(tmp_path: Path) -> None:
    missing = str(tmp_path / "annotations.txt")
    values = config(**{"train_dataloader.dataset": {"type": "MemplanFiles", "listed": missing}}).to_dict()
    text = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    with pytest.raises(WorkloadError) as raised:
        load_workload(config_of(tmp_path, text, name="x.py").workload)
    assert raised.value.problem.startswith(
        "train_dataloader.dataset of the config cannot be built: FileNotFoundError: "
    )
    assert raised.value.problem.endswith(f"'{missing}'")
    assert raised.value.where is None  # the library's own line is no place to look at
    assert f"relative paths are looked for in {Path.cwd()}" in raised.value.hint


def test_a_sample_that_is_missing_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "annotations.txt").write_text("images/0.jpg\n", encoding="utf-8")
    listed = {"type": "MemplanFiles", "listed": str(tmp_path / "annotations.txt")}
    workload = arrived(config(**{"train_dataloader.dataset": listed}))
    with pytest.raises(
        WorkloadError, match=r"^a sample of train_dataloader.dataset of the config cannot be read: .*0\.jpg"
    ):
        workload.batch(1)


def test_another_failure_of_a_dataset_is_blamed_on_its_key(tmp_path: Path) -> None:
    wrong = config(**{"train_dataloader.dataset": {"type": "MemplanFiles", "unlisted": 1}})
    with pytest.raises(WorkloadError, match=r"\d+: train_dataloader.dataset of the config cannot be built: TypeError"):
        arrived(wrong)


def test_the_loss_is_that_of_train_step_and_no_step_is_taken() -> None:
    workload = arrived(config())
    model = workload.model()
    nn.init.ones_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    before = model.head.weight.clone()
    # one image of 8x8 twos among 8x8, normalised to 2.0: three channels of mean 2 make 6, and (6 - 1) ** 2 is 25
    assert float(workload.loss(model, workload.batch(1)).detach()) == 25.0
    assert torch.equal(model.head.weight, before)


def test_the_optimizer_has_the_parameter_wise_settings_without_a_card() -> None:
    workload = arrived(config())
    model = workload.model()
    groups = workload.optimizer(model.parameters()).param_groups
    rates = {id(each): group["lr"] for group in groups for each in group["params"]}
    assert rates[id(model.head.weight)] == 0.1
    assert rates[id(model.head.bias)] == 0.2


def test_a_model_that_updates_more_than_once_a_step_is_refused() -> None:
    workload = arrived(config(**{"model.updates": 2}))
    with pytest.raises(WorkloadError, match="updates parameters 2 times"):
        workload.loss(workload.model(), workload.batch(1))


def test_a_config_file_is_a_workload_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "their_registrations.py").write_text("imported = True\n")
    values = {**config().to_dict(), "custom_imports": {"imports": ["their_registrations"]}}
    text = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    workload = load_workload(config_of(tmp_path, text, name="x.py").workload)
    model = workload.model()
    nn.init.ones_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    assert float(workload.loss(model, workload.batch(1)).detach()) == 25.0  # as above
    assert sys.modules["their_registrations"].imported


@pytest.mark.parametrize(
    ("hook", "is_counted"),
    [
        ({"type": "EMAHook", "momentum": 0.0002}, True),
        ({"type": "mmpretrain.EMAHook"}, True),
        ({"type": EMAHook}, True),
        ({"type": "EMAHook", "device": "cpu"}, False),
        ({"type": "SyncBuffersHook"}, False),
    ],
)
def test_the_average_that_a_hook_keeps_on_the_device_is_counted(hook: dict[str, Any], is_counted: bool) -> None:
    assert integration.make_workload(config(custom_hooks=[hook])).ema is is_counted


def test_a_config_file_that_trains_nothing_is_refused_in_the_same_words(tmp_path: Path) -> None:
    text = "model = dict(type='MemplanToyNet')\ntrain_dataloader = dict(batch_size=2)\n"
    with pytest.raises(UsageError, match=r"^the config has no optim_wrapper; name a config that trains$"):
        load_workload(config_of(tmp_path, text, name="x.py").workload)


def test_a_config_that_trains_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="the config has no train_dataloader and no optim_wrapper"):
        tune(Config({"model": {"type": "MemplanToyNet"}}))


@pytest.mark.parametrize(
    ("name", "kind"), [("strategy", "DeepSpeedStrategy"), ("model_wrapper_cfg", "MMFullyShardedDataParallel")]
)
def test_a_config_that_shards_its_model_is_refused(name: str, kind: str) -> None:
    parts = {each: {} for each in ("model", "train_dataloader", "optim_wrapper")}
    with pytest.raises(UsageError, match=f"{name}.type='{kind}' shards the model"):
        tune(Config({**parts, name: {"type": kind}}))


def test_the_plan_is_set_in_a_copy_of_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    current = Recipe(micro_batch_size=2, accumulation_steps=4, precision="fp16", learning_rate=0.1)
    chosen = Recipe(micro_batch_size=8, accumulation_steps=2, learning_rate=0.2)
    monkeypatch.setattr(integration, "planned", lambda *_, **__: making.plan(current, chosen))
    schedule = [{"type": "PolyLR", "by_epoch": False, "begin": 0, "end": 400}]
    before = config(param_scheduler=schedule, train_cfg={"by_epoch": False, "max_iters": 400})
    changed, _ = tune(before)
    assert changed.train_dataloader.batch_size == 8
    assert changed.optim_wrapper.optimizer.lr == 0.2
    assert (changed.optim_wrapper.type, changed.optim_wrapper.accumulative_counts) == ("OptimWrapper", 2)
    assert "loss_scale" not in changed.optim_wrapper
    assert (changed.train_cfg.max_iters, changed.param_scheduler[0].end) == (100, 100)
    assert before.train_dataloader.batch_size == 2


def test_the_hook_is_known_to_configs_by_its_name() -> None:
    assert HOOKS.get("MemplanHook") is integration.MemplanHook


@pytest.mark.parametrize("moment", ["after_train_epoch", "before_val_epoch", "after_train"])
def test_the_hook_compares_the_training_with_its_plan(moment: str, tmp_path: Path) -> None:
    made = stored(tmp_path, making.plan(Recipe(2), Recipe(8), device_total_bytes=1 << 40))
    getattr(integration.MemplanHook(made), moment)(SimpleNamespace(iter=10))
    (check,) = Journal(tmp_path).load(made.run_id).checks
    assert check.planned_device_bytes == 700 * MIB


def test_validation_without_training_is_not_compared_with_a_plan(tmp_path: Path) -> None:
    made = stored(tmp_path, making.plan(Recipe(2), Recipe(8), device_total_bytes=1 << 40))
    integration.MemplanHook(made).before_val_epoch(SimpleNamespace(iter=0))
    assert not Journal(tmp_path).load(made.run_id).checks


def test_a_hook_without_a_plan_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are no runs"):
        HOOKS.build({"type": "MemplanHook", "store": str(tmp_path)})


VALIDATION = {"batch_size": 3, "dataset": {"type": "MemplanToys"}, "sampler": {"type": "DefaultSampler"}}


def test_what_is_validated_are_the_largest_images_in_a_batch_of_the_loaders_own_size() -> None:
    workload = arrived(config(val_dataloader=VALIDATION))
    model, batch = workload.model(), workload.evaluation_batch(7)
    assert batch.unpacked()["inputs"].shape == (3, 3, 8, 8)
    assert float(batch.unpacked()["inputs"].max()) == 2.0  # preprocessed before the step, and not again
    (predicted,) = workload.evaluate(model, batch)
    assert predicted.shape == (3, 1)
    assert type(model.data_preprocessor).__name__ == "ImgDataPreprocessor"


def test_gradients_are_zeroed_after_the_step_as_by_mmengines_own_wrapper() -> None:
    model = nn.Linear(2, 1)
    OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1)).update_params(model(torch.ones(1, 2)).sum())
    assert model.weight.grad is None
    assert arrived(config()).zero_grad_after_step


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"val_dataloader": VALIDATION, "val_cfg": {}}, True), ({"val_dataloader": VALIDATION}, False), ({}, False)],
    ids=["both", "no loop", "no data"],
)
def test_evaluation_counts_where_the_runner_would_validate(changes: dict[str, Any], expected: bool) -> None:
    assert (integration.make_workload(config(**changes)).evaluate is not None) == expected
