"""Whether a process that left its identity somewhere still runs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import psutil

from memplan.process_identity import ProcessIdentity, this_process


def test_a_process_runs_until_it_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started_at = psutil.Process(child.pid).create_time()
        identity = ProcessIdentity(host=this_process().host, pid=child.pid, started_at=started_at)
        assert identity.is_running() is True
    assert identity.is_running() is False


def test_a_later_process_of_the_same_number_is_another_one() -> None:
    me = this_process()
    assert replace(me, started_at=me.started_at - 1).is_running() is False


def test_of_another_machine_it_is_not_known() -> None:
    assert replace(this_process(), host="node7").is_running() is None
