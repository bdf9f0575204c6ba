"""The folders around a config."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan.configs.project_folders import common_root, search_path_of

if TYPE_CHECKING:
    from pathlib import Path


def test_the_workload_is_looked_for_up_to_the_project_and_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / "configs" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project" / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = search_path_of(tmp_path / "project" / "configs" / "deep" / "x.py")
    names = ["project/configs/deep", "project/configs", "project", "elsewhere"]
    assert found == tuple(str(tmp_path / each) for each in names)


def test_a_config_outside_any_project_has_its_own_folder_and_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert search_path_of(tmp_path / "x.py", "a.b:c") == (str(tmp_path), str(tmp_path / "here"))


@pytest.mark.parametrize(("made", "is_looked_in"), [("src/net/train.py", True), ("src/other/train.py", False)])
def test_the_sources_of_a_project_are_looked_in_for_a_package_that_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, is_looked_in: bool
) -> None:
    (tmp_path / made).parent.mkdir(parents=True)
    (tmp_path / "configs").mkdir()
    monkeypatch.chdir(tmp_path)
    found = search_path_of(tmp_path / "configs" / "x.py", "net.train:make")
    assert (str(tmp_path / "src") in found) is is_looked_in


def test_a_diff_starts_at_the_checkout_or_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert common_root([tmp_path / "a" / "x.py"]) == tmp_path / "a"
    monkeypatch.chdir(tmp_path / "a")
    assert common_root([tmp_path / "a" / "b" / "x.py"]) == tmp_path / "a"
    assert common_root([tmp_path / "a" / "b" / "x.py", tmp_path / "y.py"]) == tmp_path
    (tmp_path / ".git").mkdir()
    assert common_root([tmp_path / "a" / "x.py"]) == tmp_path
