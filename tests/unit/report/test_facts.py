"""The facts of a run: what was estimated beside what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.report.facts import Comparison, compare, report_run
from memplan.results import BreakdownBytes, OutcomeKind
from memplan.units import MIB
from tests.making import measurement, trial


def test_the_error_is_relative_to_what_was_measured() -> None:
    assert Comparison(name="x", estimated_bytes=90, measured_bytes=100).relative_error == pytest.approx(-0.1)


@pytest.mark.parametrize(("estimated", "measured"), [(None, 100), (100, None), (100, 0)])
def test_there_is_no_error_where_a_side_is_missing_or_nothing_was_measured(estimated: int, measured: int) -> None:
    assert Comparison(name="x", estimated_bytes=estimated, measured_bytes=measured).relative_error is None


@pytest.mark.parametrize(("measured", "held"), [(None, None), (89, False), (90, True), (110, True), (111, False)])
def test_a_measured_peak_is_judged_against_the_estimated_range(measured: int | None, held: bool | None) -> None:
    row = Comparison(name="x", estimated_bytes=100, measured_bytes=measured, estimated_range_bytes=(90, 110))
    assert row.is_in_range is held


def test_components_of_each_side_add_up_to_its_process_peak() -> None:
    run = trial(4, 500, estimated_mib=450)
    rows = compare(run.estimate, run.outcome.measurement)
    parts = [row for row in rows if not row.name.startswith("peak")]
    (process,) = [row for row in rows if row.name == "peak process"]
    assert sum(row.estimated_bytes for row in parts) == process.estimated_bytes == 450 * MIB
    assert sum(row.measured_bytes for row in parts) == process.measured_bytes == 500 * MIB


def test_the_cpu_has_no_reserved_peak_to_compare() -> None:
    run = trial(4, 500, estimated_mib=450)
    assert "peak reserved" not in [row.name for row in compare(run.estimate, run.outcome.measurement)]


def test_what_a_command_holds_beside_its_parameters_is_not_called_temporaries_alone() -> None:
    read = measurement(500)
    of_command = replace(read, breakdown=BreakdownBytes(parameters=50 * MIB, temporaries=350 * MIB, context=100 * MIB))
    names = [row.name for row in compare(None, of_command)]
    assert names[:3] == ["parameters", "activations and temporaries", "context"]
    assert "temporaries" not in [row.name for row in compare(None, read)]


def test_what_was_not_attributed_is_not_said_to_be_nothing() -> None:
    run = trial(4, 500, estimated_mib=450)
    unattributed = replace(measurement(500), breakdown=BreakdownBytes(temporaries=400 * MIB, context=100 * MIB))
    known = {row.name for row in compare(run.estimate, unattributed) if row.measured_bytes is not None}
    assert known == {"context", "peak process"}
    on_a_card = replace(unattributed, peak_reserved_bytes=420 * MIB)
    known = {row.name for row in compare(run.estimate, on_a_card) if row.measured_bytes is not None}
    assert known == {"context", "peak allocated", "peak reserved", "peak process"}


def test_the_last_trial_that_fits_is_compared_though_a_later_one_was_measured_too() -> None:
    late = trial(40, 1010, number=2, kind=OutcomeKind.HOST_OUT_OF_MEMORY)
    assert report_run("r", [trial(4, 300, number=1), late], None).subject.number == 1
    assert report_run("r", [late], None).subject.number == 2


def test_an_interrupted_run_is_reported_from_its_trials_alone() -> None:
    trials = [trial(4, 300, number=1), trial(40, None, number=2, kind=OutcomeKind.HOST_OUT_OF_MEMORY)]
    report = report_run("r", trials, None)
    assert (report.subject.number, report.plan, len(report.trials)) == (1, None, 2)
    assert report.trials[1].outcome is OutcomeKind.HOST_OUT_OF_MEMORY


def test_a_run_without_trials_still_reports() -> None:
    report = report_run("r", [], None)
    assert (report.subject, report.components, report.trials) == (None, (), ())
