"""Shared by all tests: the GPU marker skips with a reason, golden files are updated on request."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from memplan.configs.writing import verification
from memplan.devices.driver import read_cards
from memplan.errors import DeviceError

settings.register_profile("memplan", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("memplan")  # machines are noisy: how long an example takes says nothing about the law it tests

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side; results do not depend on it

# No test reads or writes the user's own cache, nor do tests side by side wait for each other's turns on the machine.
OWN_FOLDERS = ("MEMPLAN_CACHE_DIR", "MEMPLAN_TURNS_DIR")
for variable in OWN_FOLDERS:
    os.environ[variable] = tempfile.mkdtemp(prefix="memplan-tests-")

# A shell that starts the tests in the background has Ctrl-C ignored, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files with what is produced now")


def pytest_configure(config: pytest.Config) -> None:
    for variable in OWN_FOLDERS:  # not at exit, which xdist's workers never reach
        config.add_cleanup(partial(shutil.rmtree, os.environ[variable], ignore_errors=True))
    if not hasattr(config, "workerinput"):
        # The formatter that mmengine imports writes a cache at its first import, and not atomically: where two workers
        # are the first, one may read what the other has half written.
        with suppress(ImportError):
            importlib.import_module("yapf")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    """Drop the name of the running test: a template of child processes serves one environment, and it changes."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_a_card = [item for item in items if item.get_closest_marker("gpu")]
    reason = _why_no_card() if on_a_card else None
    for item in on_a_card if reason is not None else ():
        item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Set what was imported and collected aside: whatever looks for tensors would go through all of it each time."""
    gc.collect()
    gc.freeze()


def _why_no_card() -> str | None:
    try:
        return None if read_cards() else "no card is visible"
    except DeviceError as error:
        return error.problem


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """Compare text with tests/golden/<name>, or rewrite it under --update-golden."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        assert text == path.read_bytes().decode()

    return compare


@pytest.fixture
def memplans_reader_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the ecosystems' own packages out, each of which takes a second to start; other tests have them read."""
    monkeypatch.setattr(verification, "_loaded_by", lambda request: None)
