"""Whether a process that left its identity somewhere still runs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from memplan.process_identity import identity_of, this_process


def test_a_process_runs_until_it_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        identity = identity_of(child.pid)
        assert identity.is_running() is True
        child.kill()
        while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
            pass
        assert identity.is_running() is False  # not waited for yet
    assert identity.is_running() is False


def test_a_later_process_of_the_same_number_is_another_one() -> None:
    me = this_process()
    boot, _, ticks = me.started.rpartition("+")
    assert replace(me, started=f"{boot}+{int(ticks) - 1}").is_running() is False
    assert replace(me, started=f"another boot+{ticks}").is_running() is False


def test_setting_the_clock_makes_no_other_process_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    me = this_process()
    monkeypatch.setattr(psutil, "boot_time", lambda: 0.0)  # which moves as the clock is set
    assert me.is_running() is True
    assert this_process() == me


def test_the_name_of_a_program_may_hold_anything() -> None:
    renaming = "import ctypes; ctypes.CDLL(None).prctl(15, b') S 1 (', 0, 0, 0); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", renaming], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        before = identity_of(child.pid)
        child.stdout.readline()
        assert identity_of(child.pid) == before
        child.kill()


def test_there_is_no_identity_of_a_process_that_is_not_there() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    with pytest.raises(ProcessLookupError, match=str(child.pid)):
        identity_of(child.pid)


def test_of_another_machine_it_is_not_known() -> None:
    assert replace(this_process(), host="node7").is_running() is None
