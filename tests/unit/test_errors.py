"""Errors say where, what and what to do, in one line, and survive the way out of a child process."""

from __future__ import annotations

import pickle

from memplan.errors import ConfigError, MemplanError


def test_an_error_reads_as_place_problem_and_hint() -> None:
    error = ConfigError("key 'data.batch' is missing", where="a.py:3", hint="did you mean 'data.batch_size'?")
    assert str(error) == "a.py:3: key 'data.batch' is missing; did you mean 'data.batch_size'?"


def test_an_error_without_place_or_hint_is_its_problem() -> None:
    assert str(MemplanError("it broke")) == "it broke"


def test_an_error_keeps_its_parts_through_pickle() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("p", where="w", hint="h", detail="d")))
    assert type(error) is ConfigError
    assert (error.problem, error.where, error.hint, error.detail) == ("p", "w", "h", "d")
