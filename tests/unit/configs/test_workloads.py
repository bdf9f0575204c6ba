"""What a workload function receives, and what the libraries that it calls make of it."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import TYPE_CHECKING

import pytest

from memplan.configs.workloads import ConfigNode, load_workload
from memplan.errors import WorkloadError
from tests.making import reference

if TYPE_CHECKING:
    from pathlib import Path

VALUES = {"model": {"type": "Net", "width": 4, "heads": [{"size": 2}, {"size": 3}]}, "lr": 3e-4, "betas": (0.9, 0.99)}


def test_every_level_is_a_dict_with_attributes() -> None:
    config = ConfigNode(VALUES)
    assert (config.model.width, config["model"].heads[1].size, config.betas) == (4, 3, (0.9, 0.99))
    assert isinstance(config.model.heads[0], dict)
    assert config == VALUES


def test_a_key_that_is_missing_is_named_with_those_that_are_there() -> None:
    with pytest.raises(AttributeError, match="no 'rate' here; it sets model, lr, betas"):
        _ = ConfigNode(VALUES).rate


def test_copies_and_what_is_set_later_have_attributes_too() -> None:
    config = ConfigNode(VALUES)
    config.data = {"size": {"train": 8}}
    assert config.data.size.train == 8
    for made in (config.copy(), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert made == config
        assert made.data.size.train == 8


def test_what_it_is_updated_with_has_attributes_too() -> None:
    config = ConfigNode({"data": {"size": 4}})
    config.update({"model": {"depth": 2}}, seed=1)
    assert (config.model.depth, config.seed) == (2, 1)


def test_what_a_workload_changes_is_its_own() -> None:
    config = ConfigNode(VALUES)
    config.model.pop("type")
    assert VALUES["model"]["type"] == "Net"


def test_a_registry_of_mmengine_builds_from_a_section() -> None:
    mmengine = pytest.importorskip("mmengine", reason="needs memplan[mmengine]")
    registry = mmengine.Registry("nets")
    registry.register_module(name="Net", module=lambda width, heads: (width, heads[0].size))
    config = ConfigNode(VALUES)
    assert registry.build(config.model) == (4, 2)
    assert mmengine.Config(config).model.heads[1].size == 3


def test_omegaconf_and_hydra_take_it() -> None:
    omegaconf = pytest.importorskip("omegaconf", reason="needs omegaconf")
    assert omegaconf.OmegaConf.create(ConfigNode(VALUES).to_dict()).model.heads[1].size == 3
    hydra = pytest.importorskip("hydra.utils", reason="needs hydra-core")
    assert hydra.instantiate(ConfigNode({"_target_": "builtins.complex", "real": 1, "imag": 2})) == 1 + 2j


@pytest.mark.parametrize(
    ("module", "imported", "said"),
    [
        ("theirs.planned", "nets", "No module named 'nets'; it lies in theirs: import it as theirs.nets, or add"),
        ("theirs.planned", "absent_module", r"No module named 'absent_module'$"),
        ("theirs_planned", "their", r"No module named 'their'$"),  # the beginning of the workload's own name
        ("absent.planned", "nets", r"there is no module 'absent'; it was looked for in"),
    ],
)
def test_a_module_that_is_not_found_is_told_from_the_workloads_own(
    module: str, imported: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "nets.py").write_text("")
    for name in ("theirs/planned.py", "theirs_planned.py"):
        (tmp_path / name).write_text(f"import {imported}\n")
    with pytest.raises(WorkloadError, match=said):
        load_workload(reference(f"{module}:make", tmp_path))
