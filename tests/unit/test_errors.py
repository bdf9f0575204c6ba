"""Errors say where, what and what to do, in one line, and survive the way out of a child process."""

from __future__ import annotations

import pickle

from memplan.errors import ConfigError, MemplanError, raised_text


def test_an_error_reads_as_place_problem_and_hint() -> None:
    error = ConfigError("key 'data.batch' is missing", where="a.py:3", hint="did you mean 'data.batch_size'?")
    assert str(error) == "a.py:3: key 'data.batch' is missing; did you mean 'data.batch_size'?"


def test_an_error_without_place_or_hint_is_its_problem() -> None:
    assert str(MemplanError("it broke")) == "it broke"


def test_an_error_keeps_its_parts_through_pickle() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("p", where="w", hint="h", detail="d")))
    assert type(error) is ConfigError
    assert (error.problem, error.where, error.hint, error.detail) == ("p", "w", "h", "d")


def test_a_text_of_several_lines_is_told_in_one() -> None:
    assert raised_text(TypeError("got a list, but expected:\n * (Tensor input)\n")) == (
        "TypeError: got a list, but expected: * (Tensor input)"
    )
    assert raised_text(KeyError()) == "KeyError"


def test_of_a_long_text_both_ends_are_kept() -> None:
    told = raised_text(TypeError(f"Net({'x' * 400}) must be a mapping"))
    assert told.startswith("TypeError: Net(xxx")
    assert " ... " in told
    assert told.endswith("xxx) must be a mapping")
    assert len(told) == 305


def test_the_first_cause_is_told_too() -> None:
    error = ImportError("no such model.")
    error.__cause__ = RuntimeError("the package failed")
    error.__cause__.__cause__ = OSError("no library")
    assert raised_text(error) == "ImportError: no such model (from OSError: no library)"
