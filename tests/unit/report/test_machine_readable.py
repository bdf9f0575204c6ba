"""Reports for programs."""

from __future__ import annotations

import csv
import io
import json

from memplan.report.facts import report_run
from memplan.report.machine_readable import run_to_csv, run_to_json
from memplan.results import OutcomeKind
from memplan.units import MIB
from tests.making import trial

TRIALS = [
    trial(4, 500, number=1, estimated_mib=450),
    trial(4, 400, number=2, estimated_mib=400, losses=(float("nan"), 1.0), kind=OutcomeKind.NON_FINITE_LOSS),
    trial(40, None, number=3, kind=OutcomeKind.HOST_OUT_OF_MEMORY),
]


def test_json_names_its_schema_and_holds_no_number_that_json_does_not_know() -> None:
    document = json.loads(run_to_json(report_run("r", TRIALS, None)), parse_constant=lambda name: 1 / 0)
    assert document["schema_version"] == 1
    assert document["trials"][0]["process"]["relative_error"] == -0.1
    assert document["trials"][0]["process"]["measured_bytes"] == 500 * MIB


def test_csv_has_a_row_for_each_trial_and_the_components_of_the_compared_one() -> None:
    rows = list(csv.DictReader(io.StringIO(run_to_csv(report_run("r", TRIALS, None)))))
    assert [row["quantity"] for row in rows if row["trial"] == "2"] == ["peak process"]
    assert "activations" in [row["quantity"] for row in rows if row["trial"] == "1"]
    (lost,) = [row for row in rows if row["trial"] == "3"]
    assert (lost["outcome"], lost["measured_bytes"], lost["relative_error"]) == ("out of memory (host)", "", "")
