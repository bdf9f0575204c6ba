"""Work on modules, loaded before or after it is asked for."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from memplan.late_imports import when_imported, work_once_imported

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

NAME = "memplan_test_module"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield NAME
    sys.modules.pop(NAME, None)


def test_a_module_is_worked_on_right_after_its_import(module: str) -> None:
    seen: list[ModuleType] = []
    finders = list(sys.meta_path)
    with when_imported(module, seen.append):
        assert not seen
        assert importlib.import_module("json").loads("1") == 1
        imported = importlib.import_module(module)
        assert seen == [imported]
    assert sys.meta_path == finders
    assert imported.value == 1


def test_a_module_that_is_there_is_worked_on_at_once(module: str) -> None:
    imported, seen = importlib.import_module(module), list[object]()
    with when_imported(module, seen.append):
        assert seen == [imported]
    assert seen == [imported]


def test_a_module_that_is_never_imported_leaves_nothing_behind(module: str) -> None:
    seen, finders = list[object](), list(sys.meta_path)
    with when_imported(module, seen.append):
        pass
    assert sys.meta_path == finders
    importlib.import_module(module)
    assert not seen


def test_work_that_is_not_bound_to_a_context_waits_for_the_import(module: str) -> None:
    seen: list[ModuleType] = []
    finders = list(sys.meta_path)
    waiting = work_once_imported(module, seen.append)
    assert sys.meta_path == [waiting, *finders]
    imported = importlib.import_module(module)
    work_once_imported(module, seen.append)
    assert seen == [imported, imported]
    assert sys.meta_path == finders
