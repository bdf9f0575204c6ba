"""Configs whose knobs the user declares."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from memplan.configs import PatchStyle, RecipeChange, expressible, for_replicas, plan_patch
from memplan.errors import ConfigError, PatchError
from memplan.recipe import Precision, Recipe
from tests import making

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.configs import UserConfig
    from memplan.patches import ConfigPatch

BATCH = {"micro_batch_size": "data.batch_size"}
AMP = {**BATCH, "precision": "training.use_amp"}


def config_of(folder: Path, text: str, knobs: dict[str, str], name: str = "x.yaml") -> UserConfig:
    return making.config_of(folder, text, name=name, knob_keys=knobs)


def patch_of(config: UserConfig, **recipe: Any) -> ConfigPatch:
    return plan_patch(config, RecipeChange(recipe=Recipe(**recipe)))


def changed_lines(patch: ConfigPatch) -> list[str]:
    lines = [each for each in patch.diff.splitlines() if each[:1] in "+-" and each[:3] not in ("+++", "---")]
    return [each for each in lines if not each.startswith("+# memplan:")]


@pytest.mark.parametrize(("word", "on"), [("False", "True"), ("false", "true"), ("no", "yes"), ("OFF", "ON")])
def test_a_boolean_keeps_its_spelling(tmp_path: Path, word: str, on: str) -> None:
    config = config_of(tmp_path, f"data: {{batch_size: 4}}\ntraining:\n  use_amp: {word}  # mixed\n", AMP)
    patch = patch_of(config, micro_batch_size=4, precision="fp16")
    assert changed_lines(patch) == [f"-  use_amp: {word}  # mixed", f"+  use_amp: {on}  # mixed"]


def test_a_bare_boolean_cannot_say_bf16_and_the_reader_is_told(tmp_path: Path) -> None:
    config = config_of(tmp_path, "data: {batch_size: 4}\ntraining: {use_amp: true}\n", AMP)
    assert config.recipe.precision is Precision.FP16
    assert "--map amp_dtype=KEY" in config.notes[0]
    assert "no way to say bf16" in str(expressible(config, Recipe(micro_batch_size=4, precision="bf16")))
    assert expressible(config, Recipe(micro_batch_size=4, precision="fp32")) is None


def test_a_boolean_named_for_bf16_means_that(tmp_path: Path) -> None:
    config = config_of(tmp_path, "batch_size: 4\nuse_bf16: true\n", {"precision": "use_bf16"})
    assert config.recipe.precision is Precision.BF16
    assert "use_bf16 is only on or off, on being taken as bf16: fp16 needs --map amp_dtype=KEY" in config.notes
    assert changed_lines(patch_of(config, micro_batch_size=4))[1] == "+use_bf16: false"
    assert "no way to say fp16" in str(expressible(config, Recipe(micro_batch_size=4, precision="fp16")))


@pytest.mark.parametrize(
    ("line", "is_named"),
    [
        ("fp16: true", True),
        ("dtype: bfloat16", True),
        ("fp16: false", False),
        ("dtype: uint8", False),
        ("eval: {fp16: true}", False),
        ("fp16: true\nprecision: bf16", False),
    ],
)
def test_what_may_be_the_precision_is_named(tmp_path: Path, line: str, is_named: bool) -> None:
    notes = config_of(tmp_path, f"batch_size: 4\n{line}\n", {}).notes
    assert any("is not taken as the precision" in each and "--map precision=" in each for each in notes) is is_named


def test_a_precision_in_unknown_words_is_named(tmp_path: Path) -> None:
    config = config_of(tmp_path, "batch_size: 4\nprecision: amp_fp8\neval: {precision: int8}\n", {})
    assert config.recipe.precision is Precision.FP32
    assert [each[:60] for each in config.notes if "no precision that memplan knows" in each] == [
        "precision=amp_fp8 is no precision that memplan knows: what f"
    ]


def test_a_second_key_says_bf16(tmp_path: Path) -> None:
    text = "data: {batch_size: 4}\ntraining:\n  use_amp: false\n  amp_dtype: float16\n"
    config = config_of(tmp_path, text, {**AMP, "amp_dtype": "training.amp_dtype"})
    assert config.recipe.precision is Precision.FP32
    patch = patch_of(config, micro_batch_size=4, precision="bf16")
    assert [each.after for each in patch.changes] == ["true", "bfloat16"]
    assert patch_of(config, micro_batch_size=4, precision="fp16").changes[0].key == "training.use_amp"


@pytest.mark.parametrize(
    ("before", "precision", "after"),
    [
        ("'16-mixed'", "bf16", "'bf16-mixed'"),
        ("32", "fp16", "16"),
        ("float32", "bf16", "bfloat16"),
        ('"no"', "bf16", '"bf16"'),
        ("FP32", "fp16", "FP16"),
        ("32-true", "bf16-true", "bf16-true"),
        ("amp_bf16", "fp16", "amp_fp16"),
        ("amp_bf16", "fp32", "fp32"),
        ("amp", "bf16", "amp_bf16"),
    ],
)
def test_a_precision_keeps_its_vocabulary(tmp_path: Path, before: str, precision: str, after: str) -> None:
    text = f"data: {{batch_size: 4}}\ntrainer:\n  precision: {before}\n"
    config = config_of(tmp_path, text, {**BATCH, "precision": "trainer.precision"})
    patch = patch_of(config, micro_batch_size=4, precision=precision)
    assert changed_lines(patch)[1] == f"+  precision: {after}"


def test_an_unknown_precision_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training.use_amp='O2' is not a precision"):
        config_of(tmp_path, "data: {batch_size: 4}\ntraining: {use_amp: O2}\n", AMP)


def test_a_rate_that_yaml_reads_as_text_is_understood_and_written_as_a_float(tmp_path: Path) -> None:
    text = "data: {batch_size: 4}\noptimizer:\n  lr: 1e-4\n"
    config = config_of(tmp_path, text, {**BATCH, "learning_rate": "optimizer.lr"})
    assert config.recipe.learning_rate == 1e-4
    patch = patch_of(config, micro_batch_size=8, learning_rate=2e-4)
    assert "+  lr: 2.0e-4" in patch.diff


def test_an_interpolation_is_followed_to_its_source(tmp_path: Path) -> None:
    text = "size: 4\ndata:\n  batch_size: ${size}\n"
    config = config_of(tmp_path, text, BATCH)
    assert config.recipe.micro_batch_size == 4
    assert changed_lines(patch_of(config, micro_batch_size=8)) == ["-size: 4", "+size: 8"]


def test_an_empty_value_is_filled(tmp_path: Path) -> None:
    text = "data: {batch_size: 4}\nlr:\nother: 1\n"
    config = config_of(tmp_path, text, {**BATCH, "learning_rate": "lr"})
    assert config.recipe.learning_rate is None
    assert "+lr: 0.01" in patch_of(config, micro_batch_size=4, learning_rate=0.01).diff


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("shared: &n 4\ndata:\n  batch_size: *n\n", ["-  batch_size: *n", "+  batch_size: 8"]),
        ("base: &b {batch_size: 4}\ndata:\n  <<: *b\n", ["+  batch_size: 8"]),
        (
            "base: &b {batch_size: 4}\ndata: {<<: *b, x: 1}\n",
            ["-data: {<<: *b, x: 1}", "+data: {<<: *b, x: 1, batch_size: 8}"],
        ),
    ],
)
def test_a_value_that_repeats_another_gets_its_own(tmp_path: Path, text: str, changed: list[str]) -> None:
    assert sorted(changed_lines(patch_of(config_of(tmp_path, text, BATCH), micro_batch_size=8))) == sorted(changed)


@pytest.mark.parametrize(
    "text",
    [
        "a:\n  batch_size: &n 4\nb:\n  batch_size: *n\n",
        "a: &a\n  batch_size: 4\nb:\n  <<: *a\n  x: 1\n",
    ],
)
def test_a_value_that_others_repeat_changes_with_them_where_they_are_named(tmp_path: Path, text: str) -> None:
    problem = r"x.yaml:\d: a.batch_size cannot be edited in place: b.batch_size repeats its value; write .* out, or"
    with pytest.raises(PatchError, match=f"{problem} .*--map KNOB=a.batch_size,b.batch_size"):
        patch_of(config_of(tmp_path, text, {"micro_batch_size": "a.batch_size"}), micro_batch_size=8)
    both = config_of(tmp_path, text, {"micro_batch_size": "a.batch_size,b.batch_size"})
    before, after = changed_lines(patch_of(both, micro_batch_size=8))
    assert after[1:] == before[1:].replace("4", "8")


def test_an_undeclared_knob_is_asked_for(tmp_path: Path) -> None:
    config = config_of(tmp_path, "data: {batch_size: 4}\n", BATCH)
    recipe = Recipe(micro_batch_size=4, accumulation_steps=2)
    assert "--map accumulation_steps=KEY" in str(expressible(config, recipe))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("data: {batch_size: 0}", "data.batch_size=0 must be a whole number"),
        ("data: {batch_size: true}", "data.batch_size=True must be a whole number"),
        ("data: {batch_size: many}", "data.batch_size='many' must be a whole number"),
        ("other: 1", "there is no key 'data.batch_size'"),
    ],
)
def test_a_bad_batch_size_is_named(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        config_of(tmp_path, text, BATCH)


def test_without_a_declared_batch_the_user_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--map micro_batch_size=KEY"):
        config_of(tmp_path, "a: 1\n", {})


def test_a_comment_that_states_the_old_value_is_pointed_at(tmp_path: Path) -> None:
    config = config_of(tmp_path, "data:\n  batch_size: 4  # 4 fits on 8 GiB, 14 does not\n", BATCH)
    assert "x.yaml:2: the comment beside data.batch_size still says 4" in patch_of(config, micro_batch_size=8).notes


def test_toml_is_spliced(tmp_path: Path) -> None:
    config = config_of(tmp_path, "[data]\nbatch_size = 4  # of one card\n", BATCH, name="x.toml")
    assert config.recipe.micro_batch_size == 4
    assert changed_lines(patch_of(config, micro_batch_size=8))[:2] == [
        "-batch_size = 4  # of one card",
        "+batch_size = 8  # of one card",
    ]


def test_a_plain_config_has_no_children(tmp_path: Path) -> None:
    config = config_of(tmp_path, "data: {batch_size: 4}\n", BATCH)
    with pytest.raises(PatchError, match="cannot inherit"):
        plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8)), style=PatchStyle.CHILD)


def test_knobs_under_unmistakable_names_need_not_be_declared(tmp_path: Path) -> None:
    text = "train: {batch_size: 4, lr: 1e-3}\nval: {batch_size: 1}\nprecision: bf16-true\n"
    config = config_of(tmp_path, text, {})
    assert config.recipe == Recipe(micro_batch_size=4, learning_rate=1e-3, precision="bf16-true")
    taken = "train.batch_size as micro_batch_size, train.lr as learning_rate, precision as precision"
    assert config.notes == (f"taken by their names: {taken}; --map says otherwise",)


def test_a_name_that_stands_twice_or_holds_something_else_is_not_taken(tmp_path: Path) -> None:
    config = config_of(tmp_path, "batch_size: 4\na: {lr: 0.1}\nb: {lr: 0.2}\nprecision: exact\n", {})
    assert config.recipe == Recipe(micro_batch_size=4)


def test_usual_names_are_known_in_camel_case(tmp_path: Path) -> None:
    config = config_of(tmp_path, "batchSize: 4\noptim: {learningRate: 0.1}\n", {})
    assert config.recipe == Recipe(micro_batch_size=4, learning_rate=0.1)


def test_what_is_declared_is_not_guessed(tmp_path: Path) -> None:
    config = config_of(tmp_path, "batch_size: 4\nn: 8\n", {"micro_batch_size": "n"})
    assert (config.recipe.micro_batch_size, config.notes) == (8, ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: {batch_size: 4}\nb: {batch_size: 6}\n", r"such as a\.batch_size or b\.batch_size"),
        (
            "global_batch_size: 64\n",
            "--map micro_batch_size=global_batch_size --map global_batch_size=global_batch_size",
        ),
        ("model: net\n", "set it in the config, and name it"),
        ("test_data: {batch_size: 4}\nauto: {base_batch_size: 16}\n", "set it in the config, and name it"),
    ],
)
def test_where_the_batch_may_be_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of(tmp_path, text, {})


def test_lengths_that_may_follow_the_batch_are_named_and_left_alone(tmp_path: Path) -> None:
    text = "batch_size: 4\nschedule: {max_iters: 100, warmup_iters: 10}\nval: {max_iters: 5}\n"
    said = (
        "schedule.max_iters, schedule.warmup_iters are left alone, as programs differ in what they count: "
        "--map iterations=schedule.max_iters,schedule.warmup_iters for forward/backward passes, or "
        "--map optimizer_steps=schedule.max_iters,schedule.warmup_iters"
    )
    assert said in config_of(tmp_path, text, {}).notes


def test_declared_lengths_follow_the_batch_and_are_not_asked_about(tmp_path: Path) -> None:
    text = "batch_size: 4\nmax_iters: 100\n"
    config = config_of(tmp_path, text, {"iterations": "max_iters"})
    assert not any("left alone" in each for each in config.notes)
    change = RecipeChange(recipe=Recipe(micro_batch_size=8), iteration_factor=Fraction(1, 2))
    assert "+max_iters: 50" in changed_lines(plan_patch(config, change))


RATES = """\
batch_size: 4
optim:
  lr: 1e-3
  lr_decay: 0.5
  groups: [{name: body, lr: 1e-4}, {name: head}]
sched: {max_lr: 4e-3, eta_min: 0.0}
"""


def test_further_learning_rates_are_named_and_follow_in_proportion_once_declared(tmp_path: Path) -> None:
    said = (
        "optim.groups.0.lr, sched.max_lr are left alone where optim.lr changes: "
        "--map learning_rate=optim.lr,optim.groups.0.lr,sched.max_lr has them follow"
    )
    assert said in config_of(tmp_path, RATES, {}).notes
    config = config_of(tmp_path, RATES, {"learning_rate": "optim.lr,optim.groups.0.lr,sched.max_lr"})
    assert not any("left alone" in each for each in config.notes)
    patch = plan_patch(config, RecipeChange(recipe=Recipe(micro_batch_size=8, learning_rate=2e-3)))
    assert [each.value for each in patch.changes] == [2e-3, 2e-4, 8e-3, 8]


BESIDE = "train:\n  micro_batch_size: 4\n  global_batch_size: 16\n  accumulate_grad_batches: {steps}\n"


def test_accumulation_follows_from_a_global_batch_which_changes_with_the_micro_batch(tmp_path: Path) -> None:
    config = config_of(tmp_path, BESIDE.format(steps=1), {})
    assert config.recipe == Recipe(micro_batch_size=4, accumulation_steps=4)
    patch = patch_of(config, micro_batch_size=8, accumulation_steps=4)
    assert [(each.key, each.after) for each in patch.changes] == [
        ("train.micro_batch_size", "8"),
        ("train.global_batch_size", "32"),
    ]


def test_a_count_of_steps_above_one_decides_before_a_global_batch(tmp_path: Path) -> None:
    config = config_of(tmp_path, BESIDE.format(steps=2), {})
    assert config.recipe.accumulation_steps == 2
    declared = config_of(tmp_path, BESIDE.format(steps=2), {"global_batch_size": "train.global_batch_size"})
    assert declared.recipe.accumulation_steps == 4


@pytest.mark.parametrize("name", ["gradient_accumulation", "grad_accum", "grad_acc_steps", "gradient_accumulate_every"])
def test_names_that_can_mean_only_accumulation_are_taken_for_it(tmp_path: Path, name: str) -> None:
    assert config_of(tmp_path, f"batch_size: 4\n{name}: 8\n", {}).recipe.accumulation_steps == 8


@pytest.mark.parametrize("name", ["update_freq", "iter_size", "batch_accumulation"])
def test_what_may_be_accumulation_is_named_where_none_is_known(tmp_path: Path, name: str) -> None:
    text = f"batch_size: 4\n{name}: 8\n"
    hint = f"--map accumulation_steps={name} says that it does"
    said = f"{name}=8 is not taken as accumulation, which it may mean: {hint}"
    assert said in config_of(tmp_path, text, {}).notes
    for known in (f"{text}accum_steps: 2\n", text.replace("8", "1"), f"batch_size: 4\ntest: {{{name}: 8}}\n"):
        assert not any("not taken as accumulation" in each for each in config_of(tmp_path, known, {}).notes)


def test_accumulation_of_an_evaluation_or_given_twice(tmp_path: Path) -> None:
    text = "batch_size: 4\neval_accumulation_steps: 8\na: {accum_steps: 2}\nb: {accum_steps: 3}\n"
    config = config_of(tmp_path, text, {})
    told = [each.partition(" ")[0] for each in config.notes if "not taken as accumulation" in each]
    assert (config.recipe.accumulation_steps, told) == (1, ["a.accum_steps=2", "b.accum_steps=3"])


def test_a_global_batch_that_the_micro_batch_does_not_divide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="global_batch_size=16 is no multiple of the micro-batch of 3"):
        config_of(tmp_path, BESIDE.format(steps=1).replace(": 4", ": 3"), {})


def test_a_batch_of_all_replicas_is_declared_by_two_knobs_at_one_key(tmp_path: Path) -> None:
    knobs = {"micro_batch_size": "batch_size", "global_batch_size": "batch_size"}
    config = for_replicas(config_of(tmp_path, "batch_size: 32\n", knobs), 4)
    assert config.recipe == Recipe(micro_batch_size=8, world_size=4)
    assert [each.after for each in patch_of(config, micro_batch_size=16, world_size=4).changes] == ["64"]
    assert "no key for accumulation_steps" in str(expressible(config, replace(config.recipe, accumulation_steps=2)))


@pytest.mark.parametrize("value", ["auto", "-1", "0", "'32'", "null", "[16, 32]", "true"])
def test_a_batch_size_that_is_no_count_is_named_with_its_line(tmp_path: Path, value: str) -> None:
    text = f"seed: 1\ndata:\n  batch_size: {value}\n  eval_batch_size: 8\n"
    with pytest.raises(ConfigError, match=r"x\.yaml:3: data\.batch_size=.* must be a whole number of at least 1$"):
        config_of(tmp_path, text, {})


def test_a_batch_size_with_a_decimal_point_is_for_the_user_to_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--map micro_batch_size=KEY, such as batch_size$"):
        config_of(tmp_path, "batch_size: 32.0\n", {})


def test_usual_names_are_known_in_capitals(tmp_path: Path) -> None:
    config = config_of(tmp_path, "BATCH_SIZE = 4  # per card\nLEARNING_RATE = 1e-3\nMAX_STEPS = 9\n", {}, "x.py")
    assert config.recipe == Recipe(micro_batch_size=4, learning_rate=1e-3)
    assert config.notes[0].startswith("MAX_STEPS is left alone")
    assert changed_lines(patch_of(config, micro_batch_size=8))[1] == "+BATCH_SIZE = 8  # per card"


CLASSES = """\
from dataclasses import dataclass, field


@dataclass
class Data:
    batch_size: int = 4  # per card
    sizes: list[int] = field(default_factory=list)

    def total(self):
        return self.batch_size


class Config:
    class optimizer:
        lr = 1e-3
"""


def test_the_fields_of_classes_are_sections(tmp_path: Path) -> None:
    config = config_of(tmp_path, CLASSES, {}, "x.py")
    assert config.values == {"Data": {"batch_size": 4}, "Config": {"optimizer": {"lr": 1e-3}}}
    patch = patch_of(config, micro_batch_size=8, learning_rate=2e-3)
    assert changed_lines(patch) == [
        "-    batch_size: int = 4  # per card",
        "+    batch_size: int = 8  # per card",
        "-        lr = 1e-3",
        "+        lr = 2e-3",
    ]


def test_a_class_is_no_section_where_the_config_makes_objects_of_it(tmp_path: Path) -> None:
    config = config_of(tmp_path, f"{CLASSES}\ndata = Data(batch_size=8)\n", {}, "x.py")
    assert config.values == {"data": {"batch_size": 8, "sizes": []}, "Config": {"optimizer": {"lr": 1e-3}}}
    assert changed_lines(patch_of(config, micro_batch_size=16))[1] == "+data = Data(batch_size=16)"


DATACLASSES = """from dataclasses import dataclass, field, replace
@dataclass
class Optim:
    lr: float = 1e-3
@dataclass
class Long:
    epochs: int = 90
@dataclass
class Train(Long):
    batch_size: int = 4
    optim: Optim = field(default_factory=Optim)
"""
CONSTRUCTED = """class Config:
    def __init__(self, batch_size=4, *, lr=1e-3):
        self.batch_size = batch_size
        self.optim = dict(lr=lr)
    @property
    def total(self):
        return 2 * self.batch_size
"""
MADE = """def get_config(name="base"):
    config = Namespace()
    config.batch_size = 4
    config.optim = Namespace(lr=1e-3)
    return config
"""
NAMESPACE = "from types import SimpleNamespace as Namespace\n"


@pytest.mark.parametrize(
    ("text", "batch", "rate"),
    [
        (f"{DATACLASSES}cfg = Train(batch_size=4)\n", "cfg = Train(batch_size=8)", "    lr: float = 2e-3"),
        (f"{DATACLASSES}cfg = Train()\n", "    batch_size: int = 8", "    lr: float = 2e-3"),
        (f"{DATACLASSES}cfg = Train()\ncfg.batch_size = 4\n", "cfg.batch_size = 8", "    lr: float = 2e-3"),
        (f"{DATACLASSES}cfg = Train(90, 4, Optim(1e-3))\n", "cfg = Train(90, 8, Optim(2e-3))", ""),
        (f"{CONSTRUCTED}cfg = Config(4)\n", "cfg = Config(8)", "    def __init__(self, batch_size=4, *, lr=2e-3):"),
        (f"{CONSTRUCTED}cfg = Config()\n", "    def __init__(self, batch_size=8, *, lr=2e-3):", ""),
        (f"{NAMESPACE}cfg = Namespace(batch_size=4, lr=1e-3)\n", "cfg = Namespace(batch_size=8, lr=2e-3)", ""),
        (f"{NAMESPACE}{MADE}", "    config.batch_size = 8", "    config.optim = Namespace(lr=2e-3)"),
    ],
)
def test_a_config_that_is_an_object_is_patched_where_its_values_are_written(
    tmp_path: Path, text: str, batch: str, rate: str
) -> None:
    config = config_of(tmp_path, text, {}, "x.py")
    assert config.recipe == Recipe(micro_batch_size=4, learning_rate=1e-3)
    added = [each for each in changed_lines(patch_of(config, micro_batch_size=8, learning_rate=2e-3)) if each[0] == "+"]
    assert sorted(added) == sorted(f"+{each}" for each in (batch, rate) if each)


def test_a_function_of_a_config_that_sets_its_values_itself_is_not_called(tmp_path: Path) -> None:
    text = "batch_size = 4\ndef get_config():\n    raise SystemExit\n"
    assert config_of(tmp_path, text, {}, "x.py").values == {"batch_size": 4}


def test_values_that_ml_collections_fills_beside_constants_are_those_of_its_config(tmp_path: Path) -> None:
    (tmp_path / "ml_collections.py").write_text("class ConfigDict(dict):\n    __setattr__ = dict.__setitem__\n")
    made = "from ml_collections import ConfigDict\nPER_CARD = 4\ndef get_config():\n    config = ConfigDict()\n"
    config = config_of(tmp_path, f"{made}    config.batch_size = PER_CARD\n    return config\n", {}, "x.py")
    assert config.values == {"PER_CARD": 4, "batch_size": 4}
    assert changed_lines(patch_of(config, micro_batch_size=8))[1] == "+PER_CARD = 8"


def test_an_object_of_a_base_class_has_what_is_written_there(tmp_path: Path) -> None:
    config = config_of(tmp_path, f"{DATACLASSES}cfg = Train()\n", {"micro_batch_size": "cfg.epochs"}, "x.py")
    assert changed_lines(patch_of(config, micro_batch_size=8))[1] == "+    epochs: int = 8"


def test_an_object_of_an_imported_class_is_changed_where_the_config_makes_it(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text(f"{DATACLASSES}")
    config = config_of(tmp_path, "from .base import Train\ncfg = Train(batch_size=4)\n", {}, "x.py")
    assert config.recipe == Recipe(micro_batch_size=4, learning_rate=1e-3)
    assert changed_lines(patch_of(config, micro_batch_size=8, learning_rate=2e-3)) == [
        "-cfg = Train(batch_size=4)",
        "+cfg = Train(batch_size=8)",
        "+cfg.optim.lr = 0.002  # was 0.001: follows the global batch",
    ]


def test_a_default_that_two_objects_share_is_not_changed_for_one(tmp_path: Path) -> None:
    text = f"{DATACLASSES}cfg = Train()\nother = replace(cfg, epochs=1)\n"
    config = config_of(tmp_path, text, {"micro_batch_size": "cfg.batch_size"}, "x.py")
    with pytest.raises(PatchError, match=r"other\.batch_size"):
        patch_of(config, micro_batch_size=8)


def test_what_an_object_holds_beside_settings_is_text(tmp_path: Path) -> None:
    text = "class Config:\n    batch_size = 4\n    kind = slice(4)\ncfg = Config()\nlimit = slice(9)\n"
    config = config_of(tmp_path, text, {}, "x.py")
    assert config.values == {"cfg": {"batch_size": 4, "kind": "slice(None, 4, None)"}, "limit": "slice(None, 9, None)"}
    assert config.notes[0] == "cfg.kind is a slice, which is passed on as the text 'slice(None, 4, None)'"


@pytest.mark.parametrize("last", ["Data.batch_size = 6", "Data.batch_size += 2"])
def test_what_is_set_on_a_class_later_counts(tmp_path: Path, last: str) -> None:
    config = config_of(tmp_path, f"{CLASSES}\n\n{last}\n", {}, "x.py")
    assert config.recipe.micro_batch_size == 6
    if "+=" in last:
        with pytest.raises(PatchError, match=r"Data\.batch_size cannot be edited in place: it is computed"):
            patch_of(config, micro_batch_size=8)
    else:
        assert changed_lines(patch_of(config, micro_batch_size=8))[1] == "+Data.batch_size = 8"


@pytest.mark.parametrize("reference", ["@train#size", "@train::size"])
def test_a_reference_of_a_monai_bundle_is_followed_and_left_as_it_is_written(tmp_path: Path, reference: str) -> None:
    text = f"train: {{size: 8}}\nrate: 0.1\noptimizer: {{lr: '@rate'}}\nloader: {{batch_size: '{reference}'}}\n"
    config = config_of(tmp_path, text, {})
    assert config.recipe == Recipe(micro_batch_size=8, learning_rate=0.1)
    assert config.document.resolved_values["loader"] == {"batch_size": reference}
    assert changed_lines(patch_of(config, micro_batch_size=16))[:2] == ["-train: {size: 8}", "+train: {size: 16}"]


@pytest.mark.parametrize("reference", ["${train.size}", "!ref <train[size]>"])
def test_what_refers_to_the_batch_size_is_no_second_one(tmp_path: Path, reference: str) -> None:
    text = f"train: {{size: 8}}\ndata:\n  batch_size: {reference}\nloader:\n  batch_size: {reference}\n"
    config = config_of(tmp_path, text, {})
    assert config.recipe.micro_batch_size == 8
    assert config.document.resolved_values["loader"]["batch_size"] == 8
    assert changed_lines(patch_of(config, micro_batch_size=16)) == ["-train: {size: 8}", "+train: {size: 16}"]


RUN_KNOBS = {"micro_batch_size": "batch_size", "learning_rate": "lr"}


def test_what_a_config_that_is_run_computes_follows_and_is_told(tmp_path: Path) -> None:
    text = "batch_size = 8\nlr = 0.5\nsteps = 1000 // batch_size\n"
    patch = patch_of(config_of(tmp_path, text, RUN_KNOBS, name="x.py"), micro_batch_size=16, learning_rate=0.5)
    assert changed_lines(patch)[:2] == ["-batch_size = 8", "+batch_size = 16"]
    assert patch.notes == ("steps follows from what changes: 62 in place of 125",)


def test_a_value_that_another_key_takes_over_is_not_changed_for_one(tmp_path: Path) -> None:
    config = config_of(tmp_path, "batch_size = 8\nlr = 0.5\ntest_size = batch_size\n", RUN_KNOBS, name="x.py")
    with pytest.raises(PatchError, match="would set test_size to 16 where 8 is intended"):
        patch_of(config, micro_batch_size=16, learning_rate=0.5)


def test_a_rate_that_a_config_scales_itself_is_left_to_it(tmp_path: Path) -> None:
    text = "batch_size = 8\nlr = 0.125 * batch_size\n"
    config = config_of(tmp_path, text, RUN_KNOBS, name="x.py")
    patch = patch_of(config, micro_batch_size=16, learning_rate=2.0)
    assert changed_lines(patch)[:2] == ["-batch_size = 8", "+batch_size = 16"]
    assert patch.notes == ("lr follows from what changes: 2.0 in place of 1.0",)
    with pytest.raises(PatchError, match="lr cannot be edited in place: it is computed"):
        patch_of(config, micro_batch_size=16, learning_rate=3.0)


def test_values_that_are_new_at_every_reading_are_left_out_of_the_comparison(tmp_path: Path) -> None:
    text = "import time\nname = f'run-{time.time_ns()}'\nbatch_size = 8\nlr = 0.5\n"
    patch = patch_of(config_of(tmp_path, text, RUN_KNOBS, name="x.py"), micro_batch_size=16, learning_rate=0.5)
    assert changed_lines(patch)[:2] == ["-batch_size = 8", "+batch_size = 16"]
    assert patch.verified_by == "memplan's own reader, but for name, new at every reading"
    assert patch.notes == ()
