"""What the Python API offers beside what the command line does."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import typer

import memplan
from memplan import cli
from memplan.errors import ConfigError, UsageError
from memplan.integrations.tuning import PlanOptions
from memplan.patches import ConfigPatch, ValueChange
from memplan.plans import PlanRequest
from tests.making import WORKLOAD, plan

if TYPE_CHECKING:
    from pathlib import Path

# What the command line calls otherwise than the API, and what only a command line needs.
OTHER_NAMES = {"map": "knobs", "format": "format_name"}
COMMAND_LINE_ONLY = {"json", "help"}
# Options about configs, patches and training commands, which neither a workload nor a framework's settings have.
OF_CONFIGS_ONLY = {
    *("config_or_workload", "workload", "knobs", "format_name", "in_place", "loader", "apply", "output"),
    *("command", "steps", "batch_size"),
}
# Options that compare recipes, which the search for the micro-batch of one recipe does not do.
OF_PLANS_ONLY = OF_CONFIGS_ONLY | {"precision", "lr_rule", "fresh"}


def test_a_plan_takes_every_option_of_probe() -> None:
    options = {
        option.removeprefix("--")
        for parameter in typer.main.get_command(cli.app).commands["probe"].params
        for option in parameter.opts
        if option.startswith("--")
    }
    taken = set(inspect.signature(memplan.plan).parameters)
    wanted = {OTHER_NAMES.get(each, each.replace("-", "_")) for each in options - COMMAND_LINE_ONLY}
    assert wanted <= taken


def test_an_option_of_probe_has_the_default_that_it_has_in_a_plan() -> None:
    commanded, called = (inspect.signature(each).parameters for each in (cli.probe, memplan.plan))
    names = {each: {"apply_now": "apply"}.get(each, each) for each in commanded if each not in {"configs", "as_json"}}
    assert {name: commanded[each].default for each, name in names.items()} == {
        name: called[name].default for name in names.values()
    }


def test_a_probe_takes_every_option_of_a_plan_that_concerns_one_recipe() -> None:
    taken, wanted = (set(inspect.signature(each).parameters) for each in (memplan.probe, memplan.plan))
    assert wanted - OF_PLANS_ONLY <= taken


def test_a_probe_has_the_device_and_the_band_of_a_plan_that_asks_for_none() -> None:
    taken, request = inspect.signature(memplan.probe).parameters, PlanRequest()
    defaults = tuple(taken[name].default for name in ("device", "max_util", "min_util"))
    assert defaults == (request.device, request.max_utilisation, request.min_utilisation)


def test_every_tune_takes_every_option_of_a_plan_that_concerns_no_config() -> None:
    wanted = set(inspect.signature(memplan.plan).parameters) - OF_CONFIGS_ONLY - {"recipe"}
    assert wanted == set(PlanOptions.__annotations__)


def test_a_command_is_refused_with_a_workload_and_needed_without_anything() -> None:
    with pytest.raises(UsageError, match="not with a workload"):
        memplan.plan(WORKLOAD, recipe=memplan.Recipe(micro_batch_size=1), command="python train.py {micro_batch_size}")
    with pytest.raises(UsageError, match="nothing to probe"):
        memplan.plan()


def test_options_of_a_config_are_refused_with_a_workload() -> None:
    with pytest.raises(UsageError, match="go with a config, not with a workload"):
        memplan.plan(WORKLOAD, recipe=memplan.Recipe(micro_batch_size=1), knobs={"micro_batch_size": "x"})


def test_several_configs_are_planned_for_as_one(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("trainer: {devices: 1}\ndata: {class_path: net.Data, batch_size: 4}\n")
    (tmp_path / "exp.yaml").write_text("data: {batch_size: 8}\n")
    with pytest.raises(ConfigError, match=r"exp\.yaml: the config names no workload"):
        memplan.plan([tmp_path / "base.yaml", str(tmp_path / "exp.yaml")], device="rtx-3090")


class EnoughError(Exception):
    """Ends a plan that has begun."""


def test_a_workload_without_a_recipe_starts_at_one_sample() -> None:
    def end(event: object) -> None:
        raise EnoughError(event)

    with pytest.raises(EnoughError) as ended:
        memplan.plan(WORKLOAD, "rtx-3090", 0.9, 0.5, observer=end)
    (started,) = ended.value.args
    assert started.current == memplan.Recipe(1)
    assert (started.device.name, started.band.max_utilisation, started.band.min_utilisation) == ("rtx-3090", 0.9, 0.5)


def test_a_patch_that_has_no_place_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for output, trouble in ((tmp_path, "is a folder"), (tmp_path / "new" / "x.diff", "there is no folder")):
        with pytest.raises(UsageError, match=trouble):
            memplan.plan(WORKLOAD, device="rtx-3090", output=output)


def test_a_change_of_the_command_alone_is_neither_applied_nor_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = ValueChange(path="x", key="bs", before="4", after="8", reason="", value=8)
    patch = ConfigPatch(files=(), diff="", root_path="", changes=(change,), verified_by="", override_line="--bs 8")
    made = plan(memplan.Recipe(4), memplan.Recipe(8), config_patch=patch)
    monkeypatch.setattr("memplan.api.Planning.plan", lambda *_, **__: made)
    output = tmp_path / "x.diff"
    assert memplan.plan(WORKLOAD, "rtx-3090", apply=True, output=output) is made
    assert not output.exists()


def test_a_recipe_is_refused_with_a_config() -> None:
    with pytest.raises(UsageError, match="recipe= goes with a workload"):
        memplan.plan("config.yaml", recipe=memplan.Recipe(micro_batch_size=1))


@pytest.mark.parametrize(
    ("passed", "recipe", "said"),
    [
        (
            "config.yaml",
            memplan.Recipe(1),
            "'config.yaml' is no workload; memplan.plan and the command memplan estimate",
        ),
        (len, memplan.Recipe(1), r"a builtin_function_or_method is no workload; pass memplan\.Workload"),
        (
            WORKLOAD,
            {"b": 1},
            r"recipe=\{'b': 1\} is no recipe; pass",
        ),
    ],
)
def test_what_is_no_workload_or_recipe_is_told(passed: Any, recipe: Any, said: str) -> None:
    for function in (memplan.estimate, memplan.probe):
        with pytest.raises(UsageError, match=said):
            function(passed, recipe)


def test_a_plan_of_neither_config_nor_workload_is_refused() -> None:
    with pytest.raises(UsageError, match="a builtin_function_or_method is no workload"):
        memplan.plan(len)  # type: ignore[arg-type]
