"""The gateway to child processes, tried on real ones."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from memplan.children import LOG_TAIL_BYTES, ChildEnding, Template, installed_modules, run_child, stop_after
from memplan.children.interrupts import interrupts_held_back

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
MIB = 1 << 20


ENVIRONMENT = {"PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}


@pytest.fixture(scope="module", params=["started", "forked"])
def act(request: pytest.FixtureRequest):
    """Have a child do one act: a process of its own from the start, and a fork of a template."""
    with Template("child_acts") as template:

        def run(name: str, argument: Any = None, **options: Any) -> ChildEnding:
            forks_from = template if request.param == "forked" else None
            ending = run_child(
                "child_acts", (name, argument), **{"environment": ENVIRONMENT, "template": forks_from, **options}
            )
            assert template.is_running == (request.param == "forked")
            return ending

        yield run


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


def test_messages_arrive_in_order_and_as_they_were_sent(act) -> None:
    sent = [1, "two", {"three": (3.0, None)}, b"x" * (3 * MIB)]
    heard: list[Any] = []
    ending = act("echo", sent, on_message=heard.append)
    assert heard == sent
    assert ending.messages == tuple(sent)
    assert (ending.return_code, ending.stop_reason) == (0, None)


def test_a_request_larger_than_a_pipe_holds_arrives_whole(act) -> None:
    assert act("measure", b"x" * (8 * MIB)).messages == (8 * MIB,)


def test_a_child_does_not_take_its_parents_place_among_the_ranks(act, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "TORCHELASTIC_RUN_ID": "x"}
    for name, value in {**places, "OMP_NUM_THREADS": "3"}.items():
        monkeypatch.setenv(name, value)
    (found,) = act("tell_variables", [*places, "OMP_NUM_THREADS"]).messages
    assert found == {**dict.fromkeys(places), "OMP_NUM_THREADS": "3"}


def test_only_the_end_of_a_flood_of_output_is_kept(act) -> None:
    ending = act("flood", 50)
    assert ending.messages == ("done",)
    assert ending.log_tail.endswith("x\n49\n")
    assert len(ending.log_tail) <= LOG_TAIL_BYTES


def test_a_child_that_never_stops_printing_is_still_stopped(act) -> None:
    ending = act("flood_forever", watch=stop_after(0.5, "not done"))
    assert ending.stop_reason == "not done within 0 s"
    assert ending.duration_s < 30


def test_a_stopped_child_has_said_where_it_was(act) -> None:
    ending = act("wait_in_a_function_with_a_telling_name", watch=stop_after(1.0, "not done"))
    assert ending.stop_reason == "not done within 1 s"
    assert ending.return_code == -signal.SIGKILL
    assert "in wait_in_a_function_with_a_telling_name" in ending.log_tail
    assert all_gone([ending.messages[0]])


def test_a_child_that_ignores_polite_signals_is_ended_all_the_same(act) -> None:
    ending = act("ignore_every_polite_signal", watch=stop_after(1.0, "not done"))
    assert all_gone([ending.messages[0]])


def test_the_watch_is_told_the_pid_and_a_growing_age(act) -> None:
    seen: list[tuple[int, float]] = []

    def watch(pid: int, age_s: float) -> str | None:
        seen.append((pid, age_s))
        return "enough" if len(seen) == 5 else None

    ending = act("wait_in_a_function_with_a_telling_name", watch=watch)
    assert ending.stop_reason == "enough"
    assert len({pid for pid, _ in seen}) == 1
    assert [age for _, age in seen] == sorted(age for _, age in seen)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_child_that_dies_of_a_signal_keeps_what_it_said(act, number: signal.Signals) -> None:
    ending = act("kill_itself", number)
    assert ending.messages == ("before",)
    assert (ending.return_code, ending.stop_reason) == (-number, None)


def test_an_exception_ends_the_child_with_its_traceback(act) -> None:
    ending = act("fail", "the reason")
    assert ending.return_code == 1
    assert "ValueError: the reason" in ending.log_tail


@pytest.mark.parametrize("status", [0, 3])
def test_a_child_that_exits_keeps_its_status(act, status: int) -> None:
    assert act("leave", status).return_code == status


def test_processes_that_a_child_leaves_behind_are_gone_when_it_is(act) -> None:
    ending = act("leave_children")
    assert ending.return_code == 0
    assert all_gone(list(ending.messages[0]))


def test_a_process_that_a_child_sent_into_a_session_of_its_own_is_gone_too(act) -> None:
    assert all_gone(act("leave_a_daemon").messages[0])


def test_a_thread_that_never_ends_does_not_keep_the_child(act) -> None:
    assert act("leave_a_thread", watch=stop_after(60, "not done")).stop_reason is None


def test_a_process_forked_by_user_code_cannot_answer_in_the_childs_name(act) -> None:
    ending = act("answer_from_a_fork")
    assert ending.messages == ("from the child",)
    assert ending.return_code == 0


def test_user_code_finds_no_children_that_it_did_not_start(act) -> None:
    assert act("count_children").messages == ("none",)


def test_user_code_finds_standard_input_empty(act) -> None:
    assert act("read_standard_input").messages == ("",)


def test_a_process_that_leaves_the_session_of_a_fork_without_a_new_program_is_gone_too(act) -> None:
    assert all_gone(act("leave_a_forked_daemon").messages[0])


def test_a_module_that_does_not_exist_ends_like_any_child() -> None:
    ending = run_child("no_such_module_anywhere", None)
    assert ending.return_code == 1
    assert "No module named no_such_module_anywhere" in ending.log_tail


def test_a_request_that_cannot_be_sent_leaves_no_child(act) -> None:
    before = set(psutil.Process().children())
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        act("echo", lambda: None)
    assert set(psutil.Process().children()) == before


def test_an_interrupt_in_the_caller_leaves_no_child(act) -> None:
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


def test_no_descriptor_is_left_open(act) -> None:
    act("echo", [1])
    before = open_descriptors()
    act("echo", [1])
    assert open_descriptors() == before


@pytest.fixture(params=["started", "forked"])
def owner(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process that owns a child, and the child with the two that it has left behind."""
    command = [sys.executable, HERE / "child_owner.py", ENVIRONMENT["PYTHONPATH"], request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, [int(pid) for pid in process.stdout.readline().split()]
        process.kill()


def test_nothing_outlives_a_parent_that_is_killed(owner: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, pids = owner
    assert len(pids) == 3
    assert all(is_running(pid) for pid in pids)
    process.kill()
    process.wait()
    assert all_gone(pids)


@pytest.fixture
def template():
    with Template("child_acts") as made:
        yield made


def forked(template: Template, name: str, argument: Any = None, **options: Any) -> ChildEnding:
    return run_child("child_acts", (name, argument), environment=ENVIRONMENT, template=template, **options)


def test_forks_find_what_the_template_has_loaded_and_nothing_of_each_other(template: Template) -> None:
    assert forked(template, "say_what_is_loaded").messages == (True, None)
    assert forked(template, "leave_a_note", "from the first").messages == ("from the first",)
    assert forked(template, "say_what_is_loaded").messages == (True, None)
    started = run_child("child_acts", ("say_what_is_loaded", None), environment=ENVIRONMENT)
    assert started.messages == (False, None)


def test_a_fork_begins_with_the_resident_set_of_a_process_that_has_loaded_the_same(template: Template) -> None:
    started = run_child("child_acts", ("say_resident_kib", "and load"), environment=ENVIRONMENT).messages[0]
    fork = forked(template, "say_resident_kib").messages[0]
    for name in ("VmRSS", "VmHWM", "RssFile"):
        assert fork[name] == pytest.approx(started[name], rel=0.05), name


def test_a_fork_does_another_modules_work_with_what_the_template_has_loaded(template: Template) -> None:
    ending = run_child("other_acts", None, environment=ENVIRONMENT, template=template)
    assert ending.messages == ("other_acts", True)
    assert template.is_running
    assert forked(template, "echo", [1]).messages == (1,)


IMPORTED_EARLY = {
    "is_quiet": "",
    "fails": "raise OSError",
    "starts_a_thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "spoils_forks": "",
}


@pytest.mark.parametrize(
    ("imports", "loaded"),
    [
        (["is_quiet"], ["is_quiet"]),
        (["fails", "is_missing", "is_quiet"], ["is_quiet"]),
        (["is_quiet", "starts_a_thread"], []),
        (["is_quiet", "spoils_forks"], []),
    ],
    ids=lambda names: "+".join(names) or "none",
)
def test_a_template_loads_what_its_forks_all_need_unless_they_would_suffer(
    tmp_path: Path, imports: list[str], loaded: list[str]
) -> None:
    for name, text in IMPORTED_EARLY.items():
        (tmp_path / f"{name}.py").write_text(text)
    environment = {"PYTHONPATH": f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}"}
    with Template("child_acts", imports) as template:
        for _ in range(2):
            request = ("say_which_are_loaded", list(IMPORTED_EARLY))
            ending = run_child("child_acts", request, environment=environment, template=template)
            assert ending.messages == (loaded,)
            assert template.is_running


def test_forks_work_beside_a_child_at_its_priority_or_below_and_those_that_fail_are_left_out(
    template: Template,
) -> None:
    a_mib = 1 << 20  # more than a pipe holds
    ending = forked(template, "have_forks_work", {"raises": 1, "dies": 2, "bytes": a_mib})
    assert ending.messages == ([(0, 1, True, b"x" * a_mib), (3, 1, False, b"x" * a_mib)], [])
    assert ending.return_code == 0


def test_a_fork_answers_where_a_thousand_files_are_open(template: Template) -> None:
    assert forked(template, "have_a_fork_work_beside_open_files", 1100).messages == (["done"],)


@pytest.mark.parametrize("waits", ["in vain", "for them"])
def test_forks_of_a_child_end_with_it_and_answer_for_nobody(template: Template, waits: str) -> None:
    ending = forked(template, "have_forks_wait", waits, watch=stop_after(2, "it did not end"))
    assert ending.messages == ()
    assert (ending.stop_reason is None) == (waits == "in vain")
    assert all_gone([int(ending.log_tail.splitlines()[0])])


def test_a_fork_that_is_not_done_in_time_is_ended_and_left_out(template: Template) -> None:
    ending = forked(template, "have_a_fork_hang", 1)
    assert ending.messages == (["done"],)
    assert all_gone([int(ending.log_tail.splitlines()[0])])


@pytest.mark.parametrize("obstacle", ["threads", "no room"])
def test_where_a_child_cannot_be_forked_nothing_is_done_beside_it(template: Template, obstacle: str) -> None:
    assert forked(template, "have_forks_work_where_none_can_be_made", obstacle).messages == ([],)


def test_modules_of_installed_packages_and_of_memplan_are_told_from_a_users_own() -> None:
    ours = ("memplan.workload", "pytest")
    assert installed_modules((*ours, "json", __name__, "not_imported", "numpy")) == ours


def test_the_peak_of_one_fork_is_not_in_the_next(template: Template) -> None:
    big = forked(template, "grow_by_mib", 200).messages[0]
    after = forked(template, "say_resident_kib").messages[0]
    assert big["VmHWM"] > after["VmHWM"] + 200_000


def test_a_template_that_was_started_ahead_is_the_one_that_forks(template: Template) -> None:
    before = set(psutil.Process().children())
    template.start(ENVIRONMENT)
    (started,) = set(psutil.Process().children()) - before
    assert forked(template, "say_parent").messages[0] == started.pid


def test_a_template_that_was_started_for_another_environment_is_replaced(template: Template) -> None:
    template.start({**ENVIRONMENT, "MEMPLAN_ANOTHER": "1"})
    assert forked(template, "say_what_is_loaded").messages == (True, None)
    assert forked(template, "say_variable", "MEMPLAN_ANOTHER").messages == (None,)


def raise_within_a_block(number: int, came: list[str]) -> None:
    with interrupts_held_back():
        signal.raise_signal(number)
        came.append("the end of the block")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_handled_waits_until_the_block_has_ended(number: int) -> None:
    before, came = signal.signal(number, signal.default_int_handler), []
    try:
        with pytest.raises(KeyboardInterrupt):
            raise_within_a_block(number, came)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert came == ["the end of the block"]


def test_a_signal_that_is_held_back_is_handled_when_it_is_asked_for() -> None:
    before = signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        with interrupts_held_back() as interrupts:
            interrupts.deliver()
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                interrupts.deliver()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_handler_that_has_the_signals_that_follow_ignored_is_heeded() -> None:
    def wind_down(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGHUP, wind_down)
    try:
        with interrupts_held_back() as interrupts:
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                interrupts.deliver()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_on_the_heels_of_another_is_handled_once_there_is_no_child() -> None:
    pids: list[int] = []
    were_gone: list[bool] = []

    def raise_and_come_again(number: int, _frame: object) -> None:
        were_gone.append(all_gone(pids, within_s=5.0 * len(were_gone)))
        if len(were_gone) == 1:
            signal.raise_signal(number)
        raise KeyboardInterrupt

    def interrupt(found: list[int]) -> None:
        pids.extend(found)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, raise_and_come_again)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_child("child_acts", ("leave_children", "and wait"), on_message=interrupt, environment=ENVIRONMENT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert were_gone == [False, True]


def test_a_signal_that_is_ignored_is_left_to_be() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts_held_back():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_template_that_died_is_replaced(template: Template) -> None:
    first = forked(template, "say_parent").messages[0]
    os.kill(first, signal.SIGKILL)
    assert all_gone([first])
    second = forked(template, "say_parent").messages[0]
    assert second != first
    assert second != os.getpid()


def test_a_child_whose_template_dies_says_so_and_leaves_nothing(template: Template) -> None:
    def kill_the_template(pid: int, age_s: float) -> None:
        os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)

    ending = forked(template, "wait_in_a_function_with_a_telling_name", watch=kill_the_template)
    assert ending.lost_its_template
    assert ending.return_code == -signal.SIGKILL
    assert not template.is_running
    assert not forked(template, "echo", [1]).lost_its_template


def test_an_environment_that_changed_makes_a_new_template(template: Template) -> None:
    environment = {**ENVIRONMENT, "MEMPLAN_TEST": "1"}
    assert forked(template, "say_variable", "MEMPLAN_TEST").messages == (None,)
    ending = run_child("child_acts", ("say_variable", "MEMPLAN_TEST"), environment=environment, template=template)
    assert ending.messages == ("1",)


def test_a_template_that_cannot_load_leaves_children_to_be_started(template: Template) -> None:
    environment = {**ENVIRONMENT, "CHILD_ACTS_CANNOT_LOAD": "1"}
    ending = run_child("child_acts", ("echo", [1]), environment=environment, template=template)
    assert ending.messages == (1,)
    assert not template.is_running


def test_a_closed_template_leaves_no_process(template: Template) -> None:
    parent = forked(template, "say_parent").messages[0]
    template.close()
    assert all_gone([parent])


def test_repeated_interrupts_do_not_keep_a_child_from_being_ended(
    owner: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, pids = owner
    for _ in range(10):
        process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    assert process.stdout is not None
    assert process.stdout.readline() == "interrupted, and still there\n"
    assert all_gone(pids)
    assert is_running(process.pid)
