"""The journal on real files, shared by real processes."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from memplan.devices.cards import DeviceKind, DeviceSpec
from memplan.errors import StoreError, UsageError
from memplan.patches import ConfigPatch, FilePatch, ValueChange
from memplan.probe.journal import Journal
from memplan.probe.journal_file import require_store, transaction
from memplan.probe.trials import StepLimit, TrialRequest
from memplan.recipe import Precision, Recipe
from memplan.results import OutcomeKind, RunStatus
from memplan.units import MIB
from memplan.workload import PickledWorkload, WorkloadReference
from tests import making
from tests.making import REQUEST, trial

if TYPE_CHECKING:
    from memplan.plans import Plan

ROOT = Path(__file__).parents[3]


def plan(run_id: str) -> Plan:
    patch = ConfigPatch(
        files=(FilePatch(path="/a/b.py", original_text=None, patched_text="x = 1\r\n"),),
        diff="--- a\n",
        root_path="/a",
        changes=(ValueChange(path="/a/b.py", key="x", before="0", after="1", reason="because"),),
        verified_by="a loader",
    )
    chosen = trial(8, 700, estimated_mib=690)
    known = {"chosen": chosen, "estimate": chosen.estimate, "trials": (trial(4, 400), chosen), "config_patch": patch}
    return making.plan(Recipe(micro_batch_size=4), chosen.recipe, run_id=run_id, **known)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "store")


def open_in_another_process(journal: Journal, fingerprint: str, *, then: str = "") -> str:
    """Open a run in a process that ends without closing it; return the run's id."""
    program = (
        "import os, sys\n"
        "from memplan.probe.journal import Journal\n"
        "from tests.making import REQUEST, trial\n"
        "run = Journal(sys.argv[1]).open_run(sys.argv[2], {})\n"
        f"{then or 'pass'}\n"
        "print(run.run_id, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, journal.path.parent, fingerprint],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == -9, ended.stderr
    return ended.stdout.strip()


def test_reading_where_there_is_no_journal_finds_nothing_and_makes_nothing(journal: Journal) -> None:
    assert journal.runs() == ()
    assert not journal.path.parent.exists()


def test_a_trial_is_on_the_disk_once_it_is_recorded(journal: Journal) -> None:
    run = journal.open_run("f", {"max_util": 0.8})
    run.record(trial(4, 400), REQUEST)
    run.record(trial(8, 700, number=2), REQUEST)
    stored = Journal(journal.path.parent).load(run.run_id)
    assert stored.trials == (trial(4, 400), trial(8, 700, number=2))
    assert stored.status is RunStatus.RUNNING


def test_a_plan_is_stored_with_its_run(journal: Journal) -> None:
    with journal.open_run("f", {}) as run:
        run.record(trial(8, 700), REQUEST)
        run.finish(plan(run.run_id))
    assert journal.load("last").plan == plan(run.run_id)


def test_a_run_whose_process_was_killed_is_resumed_with_its_trials(journal: Journal) -> None:
    killed = open_in_another_process(journal, "f", then="run.record(trial(4, 400), REQUEST)")
    assert journal.load(killed).status is RunStatus.INTERRUPTED
    with journal.open_run("f", {}) as run:
        assert run.run_id == killed
        assert run.finished_trial(Recipe(micro_batch_size=4)) == trial(4, 400)
        assert run.finished_trial(Recipe(micro_batch_size=8)) is None


def test_a_run_that_was_closed_unfinished_is_resumed_by_the_same_process(journal: Journal) -> None:
    with journal.open_run("f", {}) as first:
        pass
    with journal.open_run("f", {}) as second:
        assert second.run_id == first.run_id


def test_a_run_that_is_open_is_left_alone(journal: Journal) -> None:
    first = journal.open_run("f", {})
    first.record(trial(4, 400), REQUEST)
    second = journal.open_run("f", {})
    assert second.run_id != first.run_id
    assert second.trials() == ()
    assert open_in_another_process(journal, "f") not in (first.run_id, second.run_id)


def test_a_run_is_resumed_for_the_same_question_only(journal: Journal) -> None:
    killed = open_in_another_process(journal, "f")
    assert journal.open_run("another", {}).run_id != killed


def test_a_finished_run_is_not_resumed(journal: Journal) -> None:
    with journal.open_run("f", {}) as first:
        first.finish(plan(first.run_id))
    assert journal.open_run("f", {}).run_id != first.run_id


def test_a_run_taken_over_by_another_process_takes_no_more_trials(journal: Journal) -> None:
    run = journal.open_run("f", {})
    run.close()
    open_in_another_process(journal, "f")
    with pytest.raises(StoreError, match="not open in this process any more"):
        run.record(trial(4, 400), REQUEST)


def test_the_run_last_written_to_comes_first(journal: Journal) -> None:
    first = journal.open_run("f", {})
    second = journal.open_run("g", {})
    first.record(trial(4, 400), REQUEST)
    assert [each.run_id for each in journal.runs()] == [first.run_id, second.run_id]


def test_a_run_is_found_by_the_beginning_of_its_name(journal: Journal) -> None:
    run = journal.open_run("f", {})
    assert journal.load(run.run_id[:-1]).run_id == run.run_id


def test_the_last_run_needs_no_name(journal: Journal) -> None:
    with pytest.raises(UsageError, match="there are no runs"):
        journal.load("last")
    first = journal.open_run("f", {})
    journal.open_run("g", {})
    first.record(trial(4, 400), REQUEST)
    assert journal.load("last").run_id == first.run_id


def test_a_run_that_is_not_there_is_told_with_those_that_are(journal: Journal) -> None:
    run = journal.open_run("f", {})
    with pytest.raises(UsageError, match=f"'yesterday' is not in the journal.*{run.run_id}"):
        journal.load("yesterday")


def test_a_beginning_that_fits_several_runs_is_refused(journal: Journal) -> None:
    journal.open_run("f", {})
    journal.open_run("g", {})
    with pytest.raises(UsageError, match="not unmistakable"):
        journal.load("20")


def test_many_processes_at_once_each_get_a_run_and_lose_no_trial(journal: Journal) -> None:
    program = (
        "import sys\n"
        "from memplan.probe.journal import Journal\n"
        "from tests.making import REQUEST, trial\n"
        "run = Journal(sys.argv[1]).open_run('f', {})\n"
        "for number in range(1, 11):\n"
        "    run.record(trial(number, 400, number=number), REQUEST)\n"
        "print('recorded', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", program, journal.path.parent],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(4)
    ]
    assert [read_line(writer) for writer in writers] == ["recorded\n"] * 4
    for writer in writers:
        writer.communicate("done\n")
        assert writer.returncode == 0
    assert [len(run.trials) for run in journal.runs()] == [10, 10, 10, 10]


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_the_store_keeps_itself_out_of_version_control(journal: Journal) -> None:
    journal.open_run("f", {})
    assert (journal.path.parent / ".gitignore").read_text() == "*\n"


def test_the_journal_may_lie_on_a_network_file_system(journal: Journal) -> None:
    with journal.open_run("f", {}) as run, contextlib.closing(sqlite3.connect(journal.path)) as connection:
        run.record(trial(4, 400), REQUEST)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert journal.load(run.run_id).trials == (trial(4, 400),)
    assert [each.name for each in journal.path.parent.iterdir() if each.name != ".gitignore"] == [journal.path.name]


def test_a_file_that_is_no_database_is_refused_and_kept(journal: Journal) -> None:
    journal.path.parent.mkdir()
    journal.path.write_text("my notes\n" * 100)
    with pytest.raises(StoreError, match="not a database"):
        journal.open_run("f", {})
    assert journal.path.read_text() == "my notes\n" * 100


def test_another_programs_database_is_refused_and_kept(journal: Journal) -> None:
    journal.path.parent.mkdir()
    with sqlite3.connect(journal.path) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="not memplan's journal"):
        journal.open_run("f", {})
    with pytest.raises(StoreError, match="not memplan's journal"):
        journal.load("last")


@pytest.mark.parametrize("version", [1, 99])
def test_a_journal_of_another_memplan_is_refused(journal: Journal, version: int) -> None:
    journal.open_run("f", {})
    with sqlite3.connect(journal.path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(StoreError, match=f"format {version}"):
        journal.load("last")


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(StoreError, match="the journal cannot be used"):
        Journal(tmp_path / "store").open_run("f", {})


@pytest.mark.parametrize("kept", [b"no database " * 1000, None])
def test_a_damaged_journal_is_for_the_user_to_remove(journal: Journal, kept: bytes | None) -> None:
    journal.open_run("f", {}).finish(None)
    content = journal.path.read_bytes()
    journal.path.write_bytes(kept or content[: 2 * 4096])  # SQLite's pages have 4 KiB
    with pytest.raises(StoreError, match="delete it or move it away, by which the runs stored in it are lost"):
        journal.load("last")


def test_a_read_only_journal_is_for_the_user_to_make_writable(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.open_run("f", {}).finish(None)
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda path, **options: connect(f"file:{path}?mode=ro", uri=True, **options)
    )
    with pytest.raises(StoreError, match="readonly database; make it and its folder writable, or name another folder"):
        journal.open_run("f", {})


def test_a_disk_that_takes_no_more_is_told_in_one_line_and_loses_nothing(journal: Journal) -> None:
    then = (
        "run.record(trial(4, 400), REQUEST)\n"
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "try:\n"
        "    run.record(trial(8, 700, number=2, evidence='x' * 400_000), REQUEST)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    said = open_in_another_process(journal, "f", then=then).splitlines()
    assert len(said) == 2
    assert said[0].startswith(f"StoreError {journal.path}: the journal cannot be used: ")
    assert journal.load(said[1]).trials == (trial(4, 400),)


def test_a_disk_that_has_no_room_for_a_journal_is_named_as_the_reason(tmp_path: Path) -> None:
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from memplan.probe.journal import Journal\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))\n"
        "try:\n"
        "    Journal(Path(sys.argv[1])).open_run('f', {})\n"
        "except Exception as error:\n"
        "    print(error)\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path)]
    said = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "journal.sqlite3: the journal cannot be used: disk I/O error; free or unlock it" in said


@pytest.mark.parametrize("place", ["file", "file/below", "folder/file/far/below"])
def test_a_place_that_takes_no_journal_is_refused_before_anything_is_made(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    for each in ("file", "folder/file"):
        (tmp_path / each).write_text("")
    with pytest.raises(StoreError, match=r"(file|this) is no folder; name another folder with --store"):
        require_store(tmp_path / place)
    require_store(tmp_path / "folder" / "new" / "one")
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["file", "file", "folder"]


def test_a_run_that_was_not_to_make_a_plan_is_finished_and_not_resumed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with journal.open_run("f", {}) as run:
        run.finish(None)
    stored = journal.load(run.run_id)
    assert (stored.plan, stored.status) == (None, RunStatus.FINISHED)
    with journal.open_run("f", {}) as later:
        assert later.run_id != run.run_id


def test_a_run_that_failed_keeps_what_was_said_of_it(journal: Journal) -> None:
    with journal.open_run("f", {}) as run:
        run.finish(None, failure="nothing fits")
    stored = journal.load(run.run_id)
    assert (stored.status, stored.failure) == (RunStatus.FAILED, "nothing fits")


DATED = {"begun": dt.date(2024, 5, 1), 3: ("a", None), "nested": {"rate": 1e-3}}
SOURCES = [
    WorkloadReference(target="net:make", config=DATED, config_path="/project/c.yaml", search_path=("/project",)),
    PickledWorkload(payload=bytes(range(256)), fingerprint="f", search_path=()),
]


@pytest.mark.parametrize("source", SOURCES, ids=["named", "handed over"])
def test_what_a_trial_was_asked_for_comes_back_exactly(journal: Journal, source) -> None:
    asked = TrialRequest(
        source=source,
        recipe=Recipe(micro_batch_size=4, precision="bf16", learning_rate=0.3),
        device=DeviceSpec(name="card", kind=DeviceKind.CUDA, total_bytes=1, compute_capability=(8, 6), live_index=1),
        budget_bytes=1000 * MIB,
        step_limit=StepLimit(limit_s=12.5, usual_precision=Precision.FP32),
    )
    with journal.open_run("f", {}) as run:
        run.record(trial(4, 400), asked)
    stored = journal.load_trial(run.run_id, 1)
    assert (stored.trial, stored.request) == (trial(4, 400), asked)


def test_the_last_of_two_trials_of_one_number_is_the_one_that_counts(journal: Journal) -> None:
    with journal.open_run("f", {}) as run:
        run.record(trial(4, None, kind=OutcomeKind.CRASH), REQUEST)
        run.record(trial(4, 400), REQUEST)
    assert journal.load_trial(run.run_id, 1).trial == trial(4, 400)


def test_a_trial_that_is_not_there_is_told_with_those_that_are(journal: Journal) -> None:
    with journal.open_run("f", {}) as run:
        run.record(trial(4, 400), REQUEST)
    with pytest.raises(UsageError, match=r"has no trial 7.*it has 1"):
        journal.load_trial(run.run_id, 7)


def test_the_command_that_runs_a_trial_again_names_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Journal().open_run("f", {}) as run:
        assert run.command_for(trial(4, 400, number=3)) == f"memplan trial {run.run_id} 3"
    with Journal("my store").open_run("f", {}) as run:
        assert run.command_for(trial(4, 400)) == f"memplan trial {run.run_id} 1 --store 'my store'"


def test_a_fresh_run_does_not_resume_an_interrupted_one(journal: Journal) -> None:
    with journal.open_run("f", {}) as interrupted:
        interrupted.record(trial(4, 400), REQUEST)
    with journal.open_run("f", {}, fresh=True) as run:
        assert run.run_id != interrupted.run_id
        assert run.trials() == ()


def test_every_transaction_waits_for_the_disk(journal: Journal) -> None:
    journal.open_run("f", {})
    with transaction(journal.path) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA: file and folder, at every commit


def test_a_power_cut_in_the_middle_of_a_commit_loses_nothing_that_was_committed_before(
    journal: Journal, tmp_path: Path
) -> None:
    run = journal.open_run("f", {})
    run.record(trial(4, 400), REQUEST)
    found = tmp_path / "after the power cut"
    with transaction(journal.path) as connection:
        connection.execute("PRAGMA cache_size = 1")  # pages go to the file before the commit
        connection.execute("UPDATE trials SET trial = ?", ("x" * 100_000,))
        shutil.copytree(journal.path.parent, found)
    assert b"x" * 1000 in (found / journal.path.name).read_bytes(), "half of a commit is in the file"
    assert Journal(found).load(run.run_id).trials == (trial(4, 400),)
