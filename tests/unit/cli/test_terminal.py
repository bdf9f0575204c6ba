"""Where a command writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.syntax import Syntax
from rich.text import Text

from memplan.cli.terminal import console_for, say_diff_was_written, show
from memplan.patches import ConfigPatch
from memplan.report.layout import spaced

if TYPE_CHECKING:
    from pathlib import Path

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


def test_the_folder_of_a_diff_is_named_where_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "change.diff"
    written.write_text("")
    monkeypatch.setenv("COLUMNS", "400")
    patch = ConfigPatch(files=(), diff="", root_path=str(tmp_path), changes=(), verified_by="")
    say_diff_was_written(console_for(), written, patch)
    monkeypatch.chdir(tmp_path)
    say_diff_was_written(console_for(), written, patch)
    said = [f"wrote {written}, which git apply or patch -p1 takes in {tmp_path}", f"wrote {written}"]
    assert capsys.readouterr().out.splitlines() == said
