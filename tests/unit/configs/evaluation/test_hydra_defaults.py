"""Composing a Hydra defaults list; held against Hydra itself where it is installed."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from memplan.configs.evaluation.hydra_defaults import choices_on_command_line, override_words
from memplan.configs.evaluation.loading import load_document
from memplan.errors import ConfigError
from tests.making import write_files

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.configs.documents import Document

TREE = {
    "config.yaml": """\
defaults:
  - data: depth
  - optim@model.optim: adam
  - _self_
size: 2
data:
  workers: 8
""",
    "data/depth.yaml": "defaults:\n  - augment: flip\n  - none\n  - base\nname: depth\n",
    "data/base.yaml": "name: base\nworkers: 1\n",
    "data/augment/flip.yaml": "p: 0.5\n",
    "optim/adam.yaml": "# @package elsewhere\nlr: 0.1\n",
    "data/none.yaml": "# nothing here\n",
}
COMPOSED = {
    "data": {"name": "depth", "workers": 8, "augment": {"p": 0.5}},
    "model": {"optim": {"lr": 0.1}},
    "size": 2,
}


def composed(folder: Path, files: dict[str, str]) -> Document:
    write_files(folder, files)
    return load_document(folder / next(iter(files)))


def by_hydra(path: Path, overrides: tuple[str, ...] = ()) -> Any:
    if importlib.util.find_spec("hydra") is None:
        pytest.skip("hydra-core is not installed")
    hydra, omegaconf = (importlib.import_module(name) for name in ("hydra", "omegaconf"))
    with hydra.initialize_config_dir(config_dir=str(path.parent), version_base=None):
        found = hydra.compose(config_name=path.stem, overrides=list(overrides))
    return omegaconf.OmegaConf.to_container(found, resolve=False)


def test_groups_stand_below_their_packages_and_the_file_itself_wins(tmp_path: Path) -> None:
    document = composed(tmp_path, TREE)
    assert document.values == COMPOSED
    assert document.notes == ()


def test_hydra_composes_the_same(tmp_path: Path) -> None:
    document = composed(tmp_path, TREE)
    assert by_hydra(document.path) == document.values


def test_each_file_knows_the_package_its_values_stand_in(tmp_path: Path) -> None:
    prefixes = {each.path.name: each.prefix for each in composed(tmp_path, TREE).inherited}
    assert prefixes == {
        "depth.yaml": "data",
        "none.yaml": "data",
        "base.yaml": "data",
        "flip.yaml": "data.augment",
        "adam.yaml": "model.optim",
    }


def test_an_override_changes_a_choice_made_before_it(tmp_path: Path) -> None:
    files = {
        "config.yaml": "defaults:\n  - data: base\n  - experiment: mine\n",
        "data/base.yaml": "name: base\n",
        "data/big.yaml": "name: big\n",
        "experiment/mine.yaml": "# @package _global_\ndefaults:\n  - override /data: big\nseed: 3\n",
    }
    document = composed(tmp_path, files)
    assert document.values == {"data": {"name": "big"}, "seed": 3}
    assert by_hydra(document.path) == document.values


@pytest.mark.parametrize(
    ("entry", "note"),
    [
        ("- data: ${oc.env:SET}", "is made on the command line"),
        ("- data: ???", "is made on the command line"),
        ("- data: gone", "names data/gone, which is not in"),
    ],
)
def test_what_is_not_followed_is_said(tmp_path: Path, entry: str, note: str) -> None:
    document = composed(tmp_path, {"config.yaml": f"defaults:\n  {entry}\n  - optional local: mine\na: 1\n"})
    assert document.values == {"a": 1}
    assert len(document.notes) == 1
    assert note in document.notes[0]


def test_the_choices_beside_a_missing_one_are_named(tmp_path: Path) -> None:
    files = {"config.yaml": "defaults:\n  - data: smal\n", "data/small.yaml": "a: 1\n", "data/big.yaml": "a: 2\n"}
    (note,) = composed(tmp_path, files).notes
    assert note == f"config.yaml names data/smal, which is not in {tmp_path.name}: data has big, small"


def test_lists_that_name_each_other_are_refused(tmp_path: Path) -> None:
    files = {
        "config.yaml": "defaults:\n  - one\n",
        "one.yaml": "defaults:\n  - two\n",
        "two.yaml": "defaults:\n  - one\n",
    }
    with pytest.raises(ConfigError, match="name each other without end"):
        composed(tmp_path, files)


def test_a_group_may_hold_a_list(tmp_path: Path) -> None:
    files = {"config.yaml": "defaults:\n  - logging: full\na: 1\n", "logging/full.yaml": "- csv\n- {name: x}\n"}
    assert composed(tmp_path, files).values == {"logging": ["csv", {"name": "x"}], "a": 1}


def test_a_broken_group_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"base.yaml:3: invalid YAML"):
        composed(tmp_path, {"config.yaml": "defaults:\n  - data: base\n", "data/base.yaml": "a: 1\nb: 'x\n"})


@pytest.mark.parametrize("listed", ["- data: depth\n  - experiment: none\n  - _self_\n", "- _self_\n  - data: depth\n"])
def test_files_after_the_primary_config_are_choices_of_the_command_line(tmp_path: Path, listed: str) -> None:
    files = {
        "config.yaml": f"defaults:\n  {listed}size: 2\n",
        "data/depth.yaml": "name: depth\n",
        "data/flow.yaml": "name: flow\n",
        "data/other.yaml": "name: other\n",
        "experiment/none.yaml": "# @package _global_\nseed: 0\n",
        "experiment/big.yaml": "# @package _global_\ndefaults:\n  - override /data: other\nsize: 3\nseed: 1\n",
    }
    primary = composed(tmp_path, files)
    experiment, data = tmp_path / "experiment" / "big.yaml", tmp_path / "data" / "flow.yaml"
    for chosen in ([experiment], [data], [data, experiment]):
        found = load_document(chosen[-1], laid_over=[primary.path, *chosen[:-1]])
        groups = choices_on_command_line(tmp_path, chosen)
        words = override_words(
            {"defaults": [{"data": None}, *([{"experiment": None}] if "none" in listed else [])]}, groups, overlay=None
        )
        assert found.values == by_hydra(primary.path, tuple(words.split()))
