"""Where a command writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.syntax import Syntax
from rich.text import Text

from memplan.cli.terminal import show
from memplan.report.layout import spaced

if TYPE_CHECKING:
    import pytest

LONG = "+path = 'a/rather/long/folder" + "/of/folders" * 20 + "'"


def test_a_patch_in_a_log_is_neither_wrapped_nor_filled_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    show(Text("Patch"), spaced(Syntax(f"-path = 'b'\n{LONG}", "diff", background_color="default", word_wrap=True)))
    assert capsys.readouterr().out == f"Patch\n\n-path = 'b'\n{LONG}\n"


def test_a_width_that_is_asked_for_holds_in_a_log_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    show(Text("nineteen characters and more"))
    assert capsys.readouterr().out.split("\n") == ["nineteen characters ", "and more", ""]
