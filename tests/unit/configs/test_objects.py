"""Setting a plan's knobs on the config objects that scripts have at hand."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from memplan.errors import ConfigError, UsageError
from memplan.plans import PlanRequest
from memplan.recipe import Recipe
from memplan.recommend.scaling import LearningRateRule
from tests.making import plan

NOW = Recipe(micro_batch_size=4, learning_rate=0.1)
LARGER = Recipe(micro_batch_size=16, learning_rate=0.4)
HALF = Recipe(micro_batch_size=16, accumulation_steps=2, precision="bf16", learning_rate=0.8)


@dataclass
class Optimization:
    lr: float = 0.1


@dataclass
class Settings:
    batch_size: int = 4
    optimization: Optimization = field(default_factory=Optimization)


@dataclass(frozen=True)
class FrozenSettings:
    batch_size: int = 4
    lr: float = 0.1


class Model:
    """As pydantic's models are: their fields are attributes, and their class tells which."""

    model_fields = ("optimization",)

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


class KeyedConfig:
    """As ml_collections' ``ConfigDict``: keys and values, but no mapping."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def keys(self) -> Any:
        return self._fields.keys()

    def __iter__(self) -> Any:
        return iter(self._fields)

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._fields[name] = value

    def items(self) -> Any:
        return self._fields.items()


class WrappingConfig:
    """Wraps its values as the Config of mmcv and mmengine does, with access by key and by attribute."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._cfg_dict = values

    def __getitem__(self, key: str) -> Any:
        return self._cfg_dict[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._cfg_dict[key] = value

    def __contains__(self, key: str) -> bool:
        return key in self._cfg_dict


def test_arguments_take_the_batch_and_their_own_rate_scaled() -> None:
    arguments = argparse.Namespace(batch_size=8, lr=0.01, epochs=3)
    found = plan(NOW, LARGER).apply(arguments)
    assert found is arguments
    assert vars(found) == {"batch_size": 16, "lr": 0.02, "epochs": 3}


def test_names_in_camel_case_are_the_usual_ones() -> None:
    args = argparse.Namespace(batchSize=4, learningRate=0.1)
    assert vars(plan(NOW, LARGER).apply(args)) == {"batchSize": 16, "learningRate": 0.4}


def test_a_second_time_changes_nothing() -> None:
    arguments = argparse.Namespace(batch_size=4, lr=0.1)
    made = plan(NOW, LARGER)
    assert vars(made.apply(made.apply(arguments))) == {"batch_size": 16, "lr": 0.4}


def test_the_rule_that_was_asked_for_scales_the_rate() -> None:
    made = plan(NOW, LARGER, request=PlanRequest(learning_rate_rule=LearningRateRule.SQRT))
    assert made.apply({"batch_size": 4, "lr": 0.1}) == {"batch_size": 16, "lr": 0.2}


def test_a_nested_dataclass_is_changed_where_the_knobs_are() -> None:
    assert plan(NOW, LARGER).apply(Settings()) == Settings(batch_size=16, optimization=Optimization(lr=0.4))


def test_models_and_what_has_keys_are_changed_where_the_knobs_are() -> None:
    config = KeyedConfig(batch_size=4, inner=Model(optimization=Model(lr=0.1)))
    set_config = plan(NOW, LARGER).apply(config)
    assert set_config is config
    assert (config["batch_size"], config["inner"].optimization.lr) == (16, 0.4)


def test_a_frozen_dataclass_is_returned_as_a_changed_copy() -> None:
    settings = FrozenSettings()
    assert plan(NOW, LARGER).apply(settings) == FrozenSettings(batch_size=16, lr=0.4)
    assert settings == FrozenSettings()


def test_given_keys_reach_into_anything_nested() -> None:
    config = {"loaders": [{"bs": 4}, {"bs": 1}], "optimizer": SimpleNamespace(rate=0.1)}
    keys = {"micro_batch_size": "loaders.0.bs", "learning_rate": "optimizer.rate"}
    plan(NOW, LARGER).apply(config, knobs=keys)
    assert config["loaders"] == [{"bs": 16}, {"bs": 1}]
    assert config["optimizer"].rate == 0.4


def test_a_key_that_is_not_there_is_named_with_what_it_may_have_meant() -> None:
    with pytest.raises(ConfigError, match=r"there is no key 'data.bs' for micro_batch_size; did you mean train.bs\?"):
        plan(NOW, LARGER).apply({"train": {"bs": 4}}, knobs={"micro_batch_size": "data.bs"})


def test_a_key_of_another_knob_behind_a_comma_is_told_where_it_goes() -> None:
    with pytest.raises(ConfigError, match="give --map once for each knob"):
        plan(NOW, LARGER).apply({"train": {"bs": 4}}, knobs={"micro_batch_size": "train.bs,precision=amp"})


def test_two_places_for_the_batch_are_not_guessed_between() -> None:
    config = {"train": {"batch_size": 4}, "val": {"batch_size": 1}}
    with pytest.raises(UsageError, match=r"micro_batch_size may be any of train\.batch_size, val\.batch_size"):
        plan(NOW, LARGER).apply(config)
    assert config == {"train": {"batch_size": 4}, "val": {"batch_size": 1}}


def test_a_knob_without_a_place_is_an_error_and_nothing_changes() -> None:
    arguments = argparse.Namespace(batch_size=4, lr=0.1)
    with pytest.raises(UsageError, match="it has no accumulation_steps, so 1 cannot become 2"):
        plan(NOW, HALF).apply(arguments)
    assert vars(arguments) == {"batch_size": 4, "lr": 0.1}


class Locked(dict[str, object]):
    """Refuses every change, as a read-only config of OmegaConf does."""

    def __setitem__(self, key: str, value: object) -> None:
        raise PermissionError(f"{key} is locked")


def test_an_object_that_refuses_a_value_is_told() -> None:
    config = Locked(batch_size=8, lr=0.1)
    with pytest.raises(UsageError, match="batch_size cannot be set to 16: PermissionError: batch_size is locked"):
        plan(NOW, LARGER).apply(config)
    assert config == {"batch_size": 8, "lr": 0.1}


def test_a_knob_without_a_place_does_not_matter_where_it_stays() -> None:
    current = Recipe(micro_batch_size=4, precision="bf16", learning_rate=None)
    made = plan(current, Recipe(micro_batch_size=16, precision="bf16"))
    assert made.apply({"batch_size": 4}) == {"batch_size": 16}


def test_an_object_without_a_batch_size_is_refused() -> None:
    with pytest.raises(UsageError, match="no micro-batch size was found"):
        plan(NOW, LARGER).apply({"lr": 0.1})


def test_training_arguments_are_set_with_their_steps_and_switches() -> None:
    arguments = SimpleNamespace(
        per_device_train_batch_size=4, gradient_accumulation_steps=1, learning_rate=0.1, bf16=False, fp16=True,
        tf32=None, max_steps=800, warmup_steps=0, num_train_epochs=3.0, output_dir="out",
    )  # fmt: skip
    found = vars(plan(NOW, HALF).apply(arguments))
    assert (found["per_device_train_batch_size"], found["gradient_accumulation_steps"]) == (16, 2)
    assert (found["bf16"], found["fp16"], found["tf32"]) == (True, False, None)
    assert (found["learning_rate"], found["max_steps"]) == (0.8, 100)  # 8 times the samples a step


def test_a_config_of_mmengine_changes_as_its_file_would() -> None:
    config = WrappingConfig({
        "train_dataloader": {"batch_size": 4},
        "optim_wrapper": {"type": "OptimWrapper", "optimizer": {"type": "SGD", "lr": 0.1}},
        "train_cfg": {"type": "IterBasedTrainLoop", "max_iters": 800},
    })  # fmt: skip
    plan(NOW, HALF).apply(config)
    assert config["train_dataloader"] == {"batch_size": 16}
    assert config["optim_wrapper"] == {
        "type": "AmpOptimWrapper",
        "dtype": "bfloat16",
        "accumulative_counts": 2,
        "optimizer": {"type": "SGD", "lr": 0.8},
    }
    assert config["train_cfg"]["max_iters"] == 200  # a quarter as many passes


def test_a_config_of_omegaconf_keeps_its_interpolations_and_is_opened_for_new_keys() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create(
        {"batch": 4, "data": {"batch_size": "${batch}"}, "trainer": {"max_epochs": 3}, "optimizer": {"lr": 0.1}}
    )
    omegaconf.OmegaConf.set_struct(config, True)
    found = plan(NOW, HALF).apply(config)
    assert found is config
    assert (config.batch, config.data.batch_size) == (16, 16)
    assert omegaconf.OmegaConf.to_container(config, resolve=False)["data"] == {"batch_size": "${batch}"}
    assert dict(config.trainer) == {"max_epochs": 3, "accumulate_grad_batches": 2, "precision": "bf16-mixed"}


def test_a_global_batch_of_an_object_is_shared_by_the_replicas_and_set() -> None:
    arguments = argparse.Namespace(micro_batch_size=4, global_batch_size=32, lr=0.01)
    now = replace(NOW, world_size=2)
    found = plan(now, replace(now, micro_batch_size=8, accumulation_steps=4)).apply(arguments)
    assert vars(found) == {"micro_batch_size": 8, "global_batch_size": 64, "lr": 0.02}


class Constants:
    batch_size = 4
    lr = 0.1

    def describe(self) -> str:
        return f"{self.batch_size}"


def test_the_constants_of_a_class_are_set_on_what_is_passed() -> None:
    made = Constants()
    assert plan(NOW, LARGER).apply(made) is made
    assert (made.batch_size, made.lr, Constants.batch_size) == (16, 0.4, 4)
    own = type("Own", (Constants,), {})
    assert plan(NOW, LARGER).apply(own) is own
    assert (own.batch_size, own.lr, Constants.batch_size) == (16, 0.4, 4)


def test_a_dataclass_of_which_no_object_was_made_is_refused() -> None:
    with pytest.raises(UsageError, match="a type holds no knobs"):
        plan(NOW, LARGER).apply(Settings)
