"""A file is written whole or not at all."""

from __future__ import annotations

import os
import resource
import stat
from typing import TYPE_CHECKING

import pytest

from memplan.errors import OutputError
from memplan.textfiles import folders_for, write_files_together, write_text_atomically

if TYPE_CHECKING:
    from pathlib import Path


def test_line_endings_are_written_as_they_are(tmp_path: Path) -> None:
    write_text_atomically(tmp_path / "a.py", "x = 1\r\ny = 2")
    assert (tmp_path / "a.py").read_bytes() == b"x = 1\r\ny = 2"


def test_a_file_name_that_is_no_utf8_is_written_with_its_own_bytes(tmp_path: Path) -> None:
    write_text_atomically(
        tmp_path / "change.diff", "+++ b/" + os.fsdecode(b"k\xe4se.yaml") + " \N{LATIN SMALL LETTER E WITH ACUTE}"
    )
    assert (tmp_path / "change.diff").read_bytes() == b"+++ b/k\xe4se.yaml \xc3\xa9"


def test_a_symbolic_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    for text in ("made", "replaced"):
        write_text_atomically(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "real").read_text() == text


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text_atomically(tmp_path / "pipe", "text")
        assert os.read(reader, 10) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_an_existing_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("old")
    path.chmod(0o640)
    write_text_atomically(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_missing_folder_is_one_clear_error_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written: No such file or directory"):
        write_text_atomically(tmp_path / "no" / "a.py", "x")
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_the_system_cuts_short_leaves_the_old_text_and_no_remains(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        with pytest.raises(OutputError, match="cannot be written: File too large"):
            write_text_atomically(path, "x" * 4096)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_are_made_for_files_and_taken_back_where_those_cannot_be_written(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "b" / "c.py", tmp_path / "a" / "d.py", tmp_path / "e.py"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match=r"folder: cannot be written"), folders_for(paths):
        write_files_together({**dict.fromkeys(paths, "x"), tmp_path / "folder": "x"})
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]
    with folders_for(paths):
        write_files_together(dict.fromkeys(paths, "x"))
    assert all(each.read_text() == "x" for each in paths)


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(OutputError, match=r"file/b: cannot be written: Not a directory"),
        folders_for([tmp_path / "a" / "c.py", tmp_path / "file" / "b" / "c.py"]),
    ):
        pytest.fail("there is no such folder")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_several_files_are_written_and_removed_together(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").write_text("old")
    write_files_together({tmp_path / "a": "new", tmp_path / "b": None, tmp_path / "c": "new"})
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"a": "new", "c": "new"}


def test_where_one_of_several_files_cannot_be_written_none_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside").write_text("kept")
    with pytest.raises(OutputError, match="cannot be written"):
        write_files_together({tmp_path / "a": "new", tmp_path / "b": "new", tmp_path / "folder": "new"})
    assert (tmp_path / "a").read_text() == "old"
    assert {each.name for each in tmp_path.iterdir()} == {"a", "folder"}
