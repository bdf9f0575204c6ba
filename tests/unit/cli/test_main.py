"""What the command line makes of errors: one line, and a status that says which kind."""

from __future__ import annotations

import io
import json
import signal
import sys
from typing import TYPE_CHECKING

import pytest

import memplan
from memplan import cli, errors
from memplan.cli import ExitCode, gpus, main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def gpus_that_raise(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Have `memplan gpus` raise an error, in place of what it does."""

    def install(error: BaseException) -> None:
        def failing() -> None:
            raise error

        (command,) = [each for each in cli.app.registered_commands if each.callback is gpus]
        monkeypatch.setattr(command, "callback", failing)
        monkeypatch.setattr(command, "name", "gpus")

    return install


@pytest.fixture
def status_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run the command line in this process; return its status."""

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["memplan", *words])
        monkeypatch.setattr(signal, "signal", lambda *_: None)  # the tests' own handler stays
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    return run


@pytest.fixture
def said(status_of: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run the command line in this process; return its status and what it wrote to stderr."""
    return lambda *words: (status_of(*words), capsys.readouterr().err)


def test_a_hyphen_is_not_taken_for_the_name_of_a_file(said: Callable[..., tuple[int, str]]) -> None:
    assert said("report", "--csv", "-") == (2, "memplan: - names no file; name one, or /dev/stdout\n")


def kinds_of(kind: type[errors.MemplanError]) -> list[type[errors.MemplanError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in kinds_of(child))]


# Kinds that are defined elsewhere end with the status of what they are a kind of, and every other kind with 1.
STATUSES = {
    errors.UsageError: 2,
    errors.UnitError: 2,
    errors.ConfigError: 2,
    errors.PatchError: 2,
    errors.WorkloadError: 2,
    errors.DeviceError: 2,
    errors.NoDriverError: 2,
    errors.StoreError: 2,
    errors.OutputError: 2,
    errors.MissingExtraError: 2,
    errors.NothingFitsError: 3,
}


@pytest.mark.parametrize("kind", kinds_of(errors.MemplanError))
def test_every_error_has_the_status_that_the_readme_promises(
    kind: type[errors.MemplanError], gpus_that_raise: Callable[..., None], said: Callable[..., tuple[int, str]]
) -> None:
    gpus_that_raise(kind("it is wrong", where="x.yaml:3", hint="mend it"))
    status = next((STATUSES[each] for each in kind.__mro__ if each in STATUSES), 1)
    assert said("gpus") == (status, "memplan: x.yaml:3: it is wrong; mend it\n")


@pytest.mark.parametrize(
    ("detail", "shown"), [("Traceback of the user's\n", "the traceback"), ("no such data\n", "what it printed")]
)
def test_an_error_with_more_to_say_names_the_option_that_shows_it(
    detail: str, shown: str, gpus_that_raise: Callable[..., None], said: Callable[..., tuple[int, str]]
) -> None:
    gpus_that_raise(errors.WorkloadError("it ends", detail=detail))
    assert said("gpus") == (2, f"memplan: it ends (--debug shows {shown})\n")


@pytest.mark.parametrize("words", [("--debug", "gpus"), ("gpus", "--debug")])
def test_debugging_shows_the_traceback_wherever_it_is_asked_for(
    words: tuple[str, ...], gpus_that_raise: Callable[..., None], said: Callable[..., tuple[int, str]]
) -> None:
    gpus_that_raise(errors.WorkloadError("it raises", detail="Traceback of the user's\n"))
    status, text = said(*words)
    assert status == 2
    assert "in failing" in text
    assert text.endswith("Traceback of the user's\nmemplan: it raises\n")


def test_a_bug_of_memplans_own_is_one_line_too(
    gpus_that_raise: Callable[..., None], said: Callable[..., tuple[int, str]]
) -> None:
    gpus_that_raise(ZeroDivisionError("division by zero"))
    assert said("gpus") == (1, "memplan: unexpected ZeroDivisionError: division by zero; --debug shows where\n")


def test_an_interrupt_has_its_own_status_and_a_word(
    gpus_that_raise: Callable[..., None], said: Callable[..., tuple[int, str]]
) -> None:
    gpus_that_raise(KeyboardInterrupt())
    status, text = said("gpus")
    assert status == ExitCode.INTERRUPTED
    assert text.endswith("memplan: interrupted\n")


def unquoted_option(said: str) -> str:
    """Return what is said of an option as Typer's own Click says it; newer releases of Click quote it."""
    return said.replace("option '--nonsense'", "option: --nonsense")


@pytest.mark.parametrize(
    ("words", "problem"),
    [(("probe",), "there is nothing to probe"), (("report", "--nonsense"), "no such option: --nonsense")],
)
def test_a_failure_is_a_document_where_one_was_asked_for(
    words: tuple[str, ...], problem: str, status_of: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(*words, "--json") == ExitCode.USAGE
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    said = unquoted_option(document["error"]["problem"])
    assert (document["error"]["kind"], said) == ("UsageError", problem)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--nonsense",), "no such option: --nonsense; memplan --help lists what there is"),
        (("repot",), "no such command 'repot'; did you mean 'report'?"),
        (("estimate",), "missing argument 'CONFIG'; memplan estimate --help lists what there is"),
        (("probe", "--max-util", "half"), "max-util 'half' is not a number; write it like 0.8"),
        (("probe", "--max-batch", "1.5"), "max-batch '1.5' is not a whole number"),
        (("trial", "last", "first"), "trial 'first' is not a whole number"),
    ],
)
def test_a_line_that_cannot_be_parsed_is_refused_in_one_line(
    words: tuple[str, ...], line: str, said: Callable[..., tuple[int, str]]
) -> None:
    status, text = said(*words)
    assert (status, unquoted_option(text)) == (ExitCode.USAGE, f"memplan: {line}\n")


class _HungUp(io.StringIO):
    """Standard output whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, f"nobody reads {text!r}")


def test_a_document_that_nobody_reads_is_no_further_failure(
    monkeypatch: pytest.MonkeyPatch, said: Callable[..., tuple[int, str]]
) -> None:
    monkeypatch.setattr(sys, "stdout", _HungUp())
    status, text = said("probe", "--json")
    assert status == ExitCode.USAGE
    assert text.startswith("memplan: there is nothing to probe")
    assert text.count("\n") == 1


def test_the_version_is_that_of_the_package(status_of: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--version") == 0
    assert capsys.readouterr().out == f"memplan {memplan.__version__}\n"


def test_a_file_that_has_no_place_is_refused_before_anything_is_done(
    said: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    page = tmp_path / "new" / "page.html"
    expected = f"memplan: {page}: there is no folder {page.parent}; make it first\n"
    assert said("report", "last", "--html", str(page)) == (2, expected)
    assert said("probe", "config.yaml", "--output", str(page)) == (2, expected)
    assert said("estimate", "config.yaml", "--snapshot", str(page)) == (2, expected)


def test_a_terminal_that_lacks_a_character_gets_another_and_not_an_error(
    monkeypatch: pytest.MonkeyPatch, gpus_that_raise: Callable[[BaseException], None], status_of: Callable[..., int]
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(written, encoding="latin-1", write_through=True))
    gpus_that_raise(errors.UsageError("█.yaml is no folder"))
    status_of("gpus")
    assert written.getvalue() == b"memplan: ?.yaml is no folder\n"
