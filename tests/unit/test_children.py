"""The gateway to child processes, tried on real ones."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from memplan.children import LOG_TAIL_BYTES, ChildEnding, run_child

HERE = Path(__file__).parent
MIB = 1 << 20


def act(name: str, argument: Any = None, **options: Any) -> ChildEnding:
    return run_child("child_acts", (name, argument), environment={"PYTHONPATH": str(HERE)}, **options)


def stop_after(seconds: float):
    return lambda pid, age_s: "took too long" if age_s > seconds else None


def all_gone(pids: list[int], *, within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any(is_running(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_messages_arrive_in_order_and_as_they_were_sent() -> None:
    sent = [1, "two", {"three": (3.0, None)}, b"x" * (3 * MIB)]
    heard: list[Any] = []
    ending = act("echo", sent, on_message=heard.append)
    assert heard == sent
    assert ending.messages == tuple(sent)
    assert (ending.return_code, ending.stop_reason) == (0, None)


def test_a_request_larger_than_a_pipe_holds_arrives_whole() -> None:
    assert act("measure", b"x" * (8 * MIB)).messages == (8 * MIB,)


def test_only_the_end_of_a_flood_of_output_is_kept() -> None:
    ending = act("flood", 50)
    assert ending.messages == ("done",)
    assert ending.log_tail.endswith("x\n49\n")
    assert len(ending.log_tail) <= LOG_TAIL_BYTES


def test_a_child_that_never_stops_printing_is_still_stopped() -> None:
    ending = act("flood_forever", watch=stop_after(0.5))
    assert ending.stop_reason == "took too long"
    assert ending.duration_s < 30


def test_a_stopped_child_has_said_where_it_was() -> None:
    ending = act("wait_in_a_function_with_a_telling_name", watch=stop_after(1.0))
    assert ending.stop_reason == "took too long"
    assert ending.return_code == -signal.SIGKILL
    assert "in wait_in_a_function_with_a_telling_name" in ending.log_tail
    assert all_gone([ending.messages[0]])


def test_a_child_that_ignores_polite_signals_is_ended_all_the_same() -> None:
    ending = act("ignore_every_polite_signal", watch=stop_after(1.0))
    assert all_gone([ending.messages[0]])


def test_the_watch_is_told_the_pid_and_a_growing_age() -> None:
    seen: list[tuple[int, float]] = []

    def watch(pid: int, age_s: float) -> str | None:
        seen.append((pid, age_s))
        return "enough" if len(seen) == 5 else None

    ending = act("wait_in_a_function_with_a_telling_name", watch=watch)
    assert ending.stop_reason == "enough"
    assert len({pid for pid, _ in seen}) == 1
    assert [age for _, age in seen] == sorted(age for _, age in seen)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_child_that_dies_of_a_signal_keeps_what_it_said(number: signal.Signals) -> None:
    ending = act("kill_itself", number)
    assert ending.messages == ("before",)
    assert (ending.return_code, ending.stop_reason) == (-number, None)


def test_an_exception_ends_the_child_with_its_traceback() -> None:
    ending = act("fail", "the reason")
    assert ending.return_code == 1
    assert "ValueError: the reason" in ending.log_tail


@pytest.mark.parametrize("status", [0, 3])
def test_a_child_that_exits_keeps_its_status(status: int) -> None:
    assert act("leave", status).return_code == status


def test_processes_that_a_child_leaves_behind_are_gone_when_it_is() -> None:
    ending = act("leave_children")
    assert ending.return_code == 0
    assert all_gone(list(ending.messages[0]))


def test_a_process_that_a_child_sent_into_a_session_of_its_own_is_gone_too() -> None:
    assert all_gone(act("leave_a_daemon").messages[0])


def test_a_thread_that_never_ends_does_not_keep_the_child() -> None:
    assert act("leave_a_thread", watch=stop_after(60)).stop_reason is None


def test_a_process_forked_by_user_code_cannot_answer_in_the_childs_name() -> None:
    ending = act("answer_from_a_fork")
    assert ending.messages == ("from the child",)
    assert ending.return_code == 0


def test_user_code_finds_no_children_that_it_did_not_start() -> None:
    assert act("count_children").messages == ("none",)


def test_user_code_finds_standard_input_empty() -> None:
    assert act("read_standard_input").messages == ("",)


def test_a_module_that_does_not_exist_ends_like_any_child() -> None:
    ending = run_child("no_such_module_anywhere", None)
    assert ending.return_code == 1
    assert "No module named no_such_module_anywhere" in ending.log_tail


def test_a_request_that_cannot_be_sent_leaves_no_child() -> None:
    before = set(psutil.Process().children())
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        act("echo", lambda: None)
    assert set(psutil.Process().children()) == before


def test_an_interrupt_in_the_caller_leaves_no_child() -> None:
    pids: list[int] = []

    def interrupt(message: Any) -> None:
        pids.extend(message)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        act("leave_children", "and wait", on_message=interrupt)
    assert len(pids) == 3
    assert all_gone(pids)


def open_descriptors() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


def test_no_descriptor_is_left_open() -> None:
    act("echo", [1])
    before = open_descriptors()
    act("echo", [1])
    assert open_descriptors() == before


def test_nothing_outlives_a_parent_that_is_killed() -> None:
    owner = subprocess.Popen(
        [sys.executable, HERE / "child_owner.py", HERE], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert owner.stdout is not None
    with owner.stdout:
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 3
        assert all(is_running(pid) for pid in pids)
        owner.kill()
        owner.wait()
        assert all_gone(pids)
