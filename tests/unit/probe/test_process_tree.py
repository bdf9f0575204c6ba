"""Memory of real processes and of those they have forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil

from memplan.probe.process_tree import ProcessTree
from memplan.units import MIB


def test_processes_that_were_forked_count_with_what_they_do_not_share() -> None:
    program = (
        "import os, sys, time\n"
        "shared = bytearray(os.urandom(1 << 20) * 64)\n"
        "if not os.fork():\n"
        "    own = bytearray(os.urandom(1 << 20) * 32)\n"
        "    print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        alone = psutil.Process(process.pid).memory_info().rss
        together = ProcessTree().resident_bytes(process.pid)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert 64 * MIB < alone < 100 * MIB
    assert 32 * MIB <= together - alone < 48 * MIB


def test_a_process_that_has_ended_takes_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert ProcessTree().resident_bytes(process.pid) == 0
