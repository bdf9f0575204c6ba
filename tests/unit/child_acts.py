"""A child process for the tests of the gateway: does one act, named in the request."""

from __future__ import annotations

import functools
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memplan.children import Forks, serve

Reply = Callable[[object], None]


def echo(argument: Any, reply: Reply) -> None:
    for each in argument:
        reply(each)


def have_forks_work(argument: Any, reply: Reply) -> None:
    forks, noted, niceness = Forks(), [], os.nice(0)

    def work(number: int) -> tuple[int, int, bool, bytes]:
        if number == argument["raises"]:
            raise ValueError(number)
        if number == argument["dies"]:
            os.kill(os.getpid(), signal.SIGKILL)
        noted.append(number)
        return number, len(noted), os.nice(0) > niceness, b"x" * argument["bytes"]

    for number in range(4):
        forks.start(functools.partial(work, number), yields=number < 3)
    reply(forks.results(within_s=60))
    reply(noted)


def have_a_fork_work_beside_open_files(argument: Any, reply: Reply) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    opened = [os.dup(0) for _ in range(argument)]
    forks = Forks()
    forks.start(lambda: "done")
    reply(forks.results(within_s=60))
    for each in opened:
        os.close(each)


def have_forks_wait(argument: Any, reply: Reply) -> None:
    forks = Forks()
    forks.start(lambda: (reply("a fork"), os.write(1, f"{os.getpid()}\n".encode()), time.sleep(600)))
    if argument == "in vain":
        time.sleep(0.5)
        return
    forks.results(within_s=60)


def have_a_fork_hang(argument: Any, reply: Reply) -> None:
    forks = Forks()
    forks.start(lambda: (os.write(1, f"{os.getpid()}\n".encode()), time.sleep(600)))
    forks.start(lambda: "done")
    reply(forks.results(within_s=argument))


def have_forks_work_where_none_can_be_made(argument: Any, reply: Reply) -> None:
    if argument == "threads":
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    else:
        os.fork = functools.partial(os.open, "is not there", os.O_RDONLY)  # root may exceed every limit on processes
    forks = Forks()
    forks.start(lambda: "done")
    reply(forks.results(within_s=60))


def tell_variables(argument: Any, reply: Reply) -> None:
    reply({name: os.environ.get(name) for name in argument})


def measure(argument: Any, reply: Reply) -> None:
    reply(len(argument))


def flood(argument: Any, reply: Reply) -> None:
    for number in range(argument):
        os.write(1, b"x" * (1 << 20) + f"\n{number}\n".encode())
    reply("done")


def flood_forever(argument: Any, reply: Reply) -> None:
    while True:
        os.write(1, b"y" * (1 << 16))


def wait_in_a_function_with_a_telling_name(argument: Any, reply: Reply) -> None:
    reply(os.getpid())
    time.sleep(600)


def ignore_every_polite_signal(argument: Any, reply: Reply) -> None:
    for polite in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(polite, signal.SIG_IGN)
    wait_in_a_function_with_a_telling_name(argument, reply)


def kill_itself(argument: Any, reply: Reply) -> None:
    reply("before")
    os.kill(os.getpid(), argument)
    time.sleep(600)


def fail(argument: Any, reply: Reply) -> None:
    raise ValueError(argument)


def leave(argument: Any, reply: Reply) -> None:
    sys.exit(argument)


def leave_children(argument: Any, reply: Reply) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    forked = os.fork()
    if not forked:
        time.sleep(600)
    reply((os.getpid(), sleeper.pid, forked))
    if argument == "and wait":
        time.sleep(600)


def leave_a_daemon(argument: Any, reply: Reply) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    reply([sleeper.pid])


def leave_a_forked_daemon(argument: Any, reply: Reply) -> None:
    forked = os.fork()
    if not forked:
        os.setsid()
        time.sleep(600)
    time.sleep(0.1)  # until it has left the session
    reply([forked])


def say_what_is_loaded(argument: Any, reply: Reply) -> None:
    reply("sqlite3" in sys.modules)
    reply(getattr(sys, "memplan_note", None))


def say_which_are_loaded(argument: Any, reply: Reply) -> None:
    reply([name for name in argument if name in sys.modules])


def leave_a_note(argument: Any, reply: Reply) -> None:
    sys.memplan_note = argument
    reply(argument)


def say_resident_kib(argument: Any, reply: Reply) -> None:
    if argument == "and load":
        preload()
    lines = Path("/proc/self/status").read_text().splitlines()
    reply({line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")})


def grow_by_mib(argument: Any, reply: Reply) -> None:
    filled = b"x" * (argument << 20)
    say_resident_kib(len(filled), reply)


def say_parent(argument: Any, reply: Reply) -> None:
    reply(os.getppid())


def say_variable(argument: Any, reply: Reply) -> None:
    reply(os.environ.get(argument))


def leave_a_thread(argument: Any, reply: Reply) -> None:
    threading.Thread(target=time.sleep, args=(600,)).start()
    reply("done")


def answer_from_a_fork(argument: Any, reply: Reply) -> None:
    forked = os.fork()
    if not forked:
        reply("from the fork")
        raise RuntimeError("the fork unwinds into the gateway's own code")
    os.waitpid(forked, 0)
    reply("from the child")


def count_children(argument: Any, reply: Reply) -> None:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        reply("none")
    else:
        reply("some")


def read_standard_input(argument: Any, reply: Reply) -> None:
    reply(sys.stdin.read())


def preload() -> None:
    if "CHILD_ACTS_CANNOT_LOAD" in os.environ:
        raise ImportError("no such library")
    import sqlite3  # noqa: F401, PLC0415

    import numpy as np  # noqa: F401, PLC0415 - some 20 MiB of library pages


def main() -> None:
    def handle(request: Any, reply: Reply) -> None:
        globals()[request[0]](request[1], reply)

    serve(handle, preload=preload, is_spoilt=lambda: "spoils_forks" in sys.modules)


if __name__ == "__main__":
    main()
