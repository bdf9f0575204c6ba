"""What the process of a trial loads beyond what the user's own run has."""

from __future__ import annotations

import importlib
import subprocess
import sys


def test_a_trials_process_loads_neither_the_journal_nor_the_search() -> None:
    program = (
        "import sys, memplan.probe.worker, memplan.probe.trial_run\n"
        "loaded = {'pydantic', 'sqlite3', 'rich', 'typer', 'memplan.probe.search'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(loaded)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert ended.stderr.strip() == ""


def test_every_public_name_is_found_where_it_lives() -> None:
    room = importlib.import_module("memplan.probe")
    for name in room.__all__:
        assert getattr(room, name).__name__ == name
