"""Turns on a device, taken by real processes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import pytest

from memplan.devices.turns import device_turn, turns_folder

# Takes turns, and gives each up when it is told to.
HOLDER = """
import sys
from memplan.devices.turns import device_turn
for round in range(int(sys.argv[2])):
    with device_turn("card", notify=lambda text: print("told", text, flush=True)):
        print(sys.argv[1], flush=True)
        sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMPLAN_TURNS_DIR", str(tmp_path / "turns"))
    return tmp_path / "turns"


def holder(name: str, *, rounds: int = 1, program: str = HOLDER) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, name, str(rounds)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end_turn_of(process: subprocess.Popen[str], folder: Path) -> None:
    """End a process's turn once somebody queues for the next one."""
    with (folder / "card.queue").open("r+") as queue:
        while try_to_lock(queue):
            fcntl.flock(queue, fcntl.LOCK_UN)
            time.sleep(0.01)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def try_to_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("program", ["/usr/bin/memplan", "/site-packages/memplan/__main__.py"])
def test_a_command_line_that_is_no_utf8_takes_its_turn_too(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [program, "probe", os.fsdecode(b"k\xe4se.yaml")])
    with device_turn("card", notify=pytest.fail):
        waiting = holder("second")
        told = line_of(waiting)
    assert told.startswith("told waiting for card")
    assert "(memplan probe k?se.yaml)" in told
    waiting.communicate("\n")


def test_a_turn_that_is_free_is_taken_without_a_word() -> None:
    said: list[str] = []
    for _ in range(2):
        with device_turn("card", notify=said.append):
            pass
    assert said == []


def test_whoever_waits_is_told_who_has_the_turn_and_gets_it_when_that_one_is_killed() -> None:
    first = holder("first")
    assert line_of(first) == "first"
    second = holder("second")
    said = line_of(second)
    assert f"waiting for card, which process {first.pid} (-c first" in said
    first.kill()
    assert line_of(second) == "second"
    for process in (first, second):
        process.kill()
        process.communicate()


def test_two_that_want_many_turns_have_them_by_turns(folder: Path) -> None:
    first = holder("x", rounds=3)
    assert line_of(first) == "x"
    second = holder("y", rounds=2)
    for _ in range(2):
        assert line_of(second).startswith("told waiting")
        end_turn_of(first, folder)
        assert line_of(second) == "y", "the first wants its next turn at once, and has to wait for it"
        assert line_of(first).startswith("told waiting")
        end_turn_of(second, folder)
        assert line_of(first) == "x"
    for process in (first, second):
        process.communicate()
        assert process.returncode == 0


def test_an_interrupt_while_waiting_is_answered_and_gives_the_place_up() -> None:
    first = holder("first")
    assert line_of(first) == "first"
    second = holder("second")
    assert line_of(second).startswith("told")
    second.send_signal(signal.SIGINT)
    started = time.monotonic()
    second.communicate()
    assert second.returncode != 0
    assert time.monotonic() - started < 10
    first.kill()
    first.communicate()
    said: list[str] = []
    with device_turn("card", notify=said.append):
        assert said == []


def test_turns_on_different_cards_do_not_meet() -> None:
    said: list[str] = []
    with device_turn("GPU-1", notify=said.append), device_turn("GPU-2", notify=said.append):
        assert said == []


def test_where_no_file_can_be_locked_the_work_goes_on_and_says_so(folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("not a folder")
    said: list[str] = []
    with device_turn("card", notify=said.append):
        pass
    assert len(said) == 1
    assert said[0].startswith("no turns are taken on card: ")


def test_files_and_folder_are_open_to_every_user(folder: Path) -> None:
    umask = os.umask(0o077)
    try:
        with device_turn("card", notify=print):
            assert folder.stat().st_mode & 0o7777 == 0o1777
            assert {each.stat().st_mode & 0o777 for each in folder.iterdir()} == {0o666}
    finally:
        os.umask(umask)


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user, whom only root can become")
def test_a_file_that_another_user_is_just_making_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    other_user = (
        "import os\nfrom memplan.devices import turns\nprint('starts', flush=True)\nos.seteuid(65534)\n" + HOLDER
    )
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are for one user alone
        Path(folder).chmod(0o1777)
        monkeypatch.setenv("MEMPLAN_TURNS_DIR", folder)
        with device_turn("card", notify=print):
            pass
        (Path(folder) / "card.turn").chmod(0o600)
        other = holder("other", program=other_user)
        assert line_of(other) == "starts"
        time.sleep(0.3)
        (Path(folder) / "card.turn").chmod(0o666)
        assert other.communicate()[0] == "other\n"


def test_whoever_waits_for_a_process_that_has_not_signed_yet_is_not_told_of_an_earlier_one(folder: Path) -> None:
    with device_turn("card", notify=print):
        pass
    said: list[str] = []
    with (folder / "card.queue").open("r+") as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)

        def told(text: str) -> None:
            said.append(text)
            fcntl.flock(queue, fcntl.LOCK_UN)

        with device_turn("card", notify=told):
            pass
    assert said == ["waiting for card, which another process is using"]


def test_a_link_in_place_of_a_lock_file_is_not_followed(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("content")
    folder.mkdir()
    (folder / "card.turn").symlink_to(target)
    said: list[str] = []
    with device_turn("card", notify=said.append):
        pass
    assert said
    assert target.read_text() == "content"


def test_without_a_setting_the_folder_is_the_same_for_all_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEMPLAN_TURNS_DIR")
    assert turns_folder().name == "memplan-turns"
