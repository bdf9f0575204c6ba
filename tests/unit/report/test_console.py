"""What the terminal shows, letter by letter, at a fixed width and without colour."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain

import pytest
from rich.text import Text

from memplan.patches import ConfigPatch, FilePatch, ValueChange
from memplan.recipe import Precision, Recipe
from memplan.recommend.speeds import fastest_run
from memplan.report.console import plan_view, run_view
from memplan.report.estimates import breakdown_view, estimates_view, largest_table, remarks_view
from memplan.report.facts import compare, report_run, trial_row
from memplan.report.html import run_to_html
from memplan.report.layout import hanging, plain_table
from memplan.report.trial_tables import (
    EVIDENCE_INDENT,
    accumulation_table,
    component_table,
    precision_table,
    range_table,
    trial_lines,
)
from memplan.report.wording import rate_text
from memplan.results import DrawnSteps, LargestMicroBatch, OutcomeKind, PeakShare, PrecisionVerdict, RunStatus
from memplan.units import GIB, MIB, format_bytes
from tests import making
from tests.making import estimate, plan, trial

INTERRUPTED = RunStatus.INTERRUPTED
CURRENT = trial(4, 300, number=1, purpose="current recipe", estimated_mib=280)
BEST = trial(12, 700, number=2, purpose="in the band", samples_per_s=15.0, estimated_mib=690)
SLOW = trial(
    4, None, number=3, purpose="same size", precision="fp16", kind=OutcomeKind.TIMEOUT, evidence="step 1 still running",
    estimated_mib=260,
)  # fmt: skip
TWICE = trial(12, 710, number=4, purpose="accumulation", accumulation_steps=2, samples_per_s=14.0, estimated_mib=695)

PATCH = ConfigPatch(
    files=(FilePatch(path="/project/config.yaml", original_text="batch_size: 4\n", patched_text="batch_size: 12\n"),),
    diff="--- a/config.yaml\n+++ b/config.yaml\n@@ -1 +1 @@\n-batch_size: 4\n+batch_size: 12\n",
    root_path="/project",
    changes=(
        ValueChange(
            path="/project/config.yaml",
            key="batch_size",
            before="4",
            after="12",
            reason="peaks at 70% of 1000.0 MiB",
        ),
    ),
    verified_by="PyYAML",
    override_line="batch_size=12",
    notes=("a comment states the old value",),
)

PLAN = making.plan(
    Recipe(micro_batch_size=4, learning_rate=0.1),
    Recipe(micro_batch_size=12, learning_rate=0.3),
    chosen=BEST,
    estimate=BEST.estimate,
    trials=(CURRENT, BEST, SLOW, TWICE),
    precisions=(
        PrecisionVerdict(
            precision=Precision.FP32, best=BEST, estimate=None, loss_deviation=None, remark="the reference"
        ),
        PrecisionVerdict(
            precision=Precision.FP16, best=None, estimate=None, loss_deviation=None, remark="too slow here: step 1"
        ),
    ),
    reasons=("It peaks at 700.0 MiB, 70% of 1000.0 MiB (60% to 80% wanted).",),
    config_patch=PATCH,
    notes=("batch norm sees 12 samples at a time",),
)


rendered = partial(making.rendered, width=80)


def test_a_finished_run(golden) -> None:
    golden("reports/finished_run.txt", rendered(run_view(report_run("run-1", PLAN.trials, PLAN))))


def test_precisions_that_are_left_out_for_one_reason_share_a_row() -> None:
    left_out = [
        PrecisionVerdict(precision=each, remark="the config has no key for precision")
        for each in (Precision.FP16, Precision.BF16)
    ]
    report = report_run("run-1", PLAN.trials, replace(PLAN, precisions=(PLAN.precisions[0], *left_out)))
    rows = [line.split()[:3] for line in rendered(precision_table(report), width=120).splitlines()[2:]]
    assert rows == [["fp32", "12", "70%"], ["fp16,", "bf16", "-"]]


def test_the_bar_of_the_recommended_size_is_green_though_its_last_run_had_another_rate() -> None:
    slower = trial(12, 700, number=5, purpose="final check", samples_per_s=14.0, estimated_mib=690)
    last = replace(slower, recipe=replace(slower.recipe, learning_rate=0.3))
    report = report_run("run-1", (*PLAN.trials, last), replace(PLAN, chosen=last, trials=(*PLAN.trials, last)))
    coloured = rendered(plan_view(report), color_system="standard", force_terminal=True)
    bars = [line for line in coloured.splitlines() if "█" in line]
    assert [(line.split()[0], "\x1b[32m█" in line) for line in bars] == [("4", False), ("12", True)]


def test_a_narrow_terminal_breaks_cells_and_cuts_no_figure() -> None:
    said = rendered(run_view(report_run("run-1", PLAN.trials, PLAN)), width=50)
    assert "…" not in said
    assert {"280.0", "690.0", "300.0", "700.0"} <= set(said.split())


def test_words_of_a_table_stay_whole_in_a_narrow_terminal_if_need_be_as_blocks() -> None:
    table = plain_table("Title", "precision", "micro-batch", "remark")
    table.add_row("fp32", "128", "predicted for the card")
    table.add_row("tf32", "-", "cannot be used")
    assert rendered(table, width=34).splitlines()[1:4] == [
        "precision  micro-batch      remark",
        "fp32               128   predicted",
        "                           for the",
    ]
    assert rendered(table, width=32).splitlines() == [
        "Title",
        "fp32",
        "  micro-batch  128",
        "  remark       predicted for the",
        "               card",
        "tf32",
        "  remark       cannot be used",
    ]


def test_where_memplan_chose_the_first_recipe_of_a_command_that_is_recommended() -> None:
    kept = replace(PLAN, recipe=PLAN.current, chosen=CURRENT, command="python t.py 4", config_patch=None)
    said = rendered(plan_view(report_run("run-1", kept.trials, kept)))
    assert "Recommended: fp32, 4 x 1, learning rate 0.1  (started from fp32, 4 x 1)" in said


def test_a_plan_that_changes_nothing(golden) -> None:
    settled = replace(
        PLAN, recipe=PLAN.current, chosen=CURRENT, trials=(CURRENT,), config_patch=None, precisions=(), notes=()
    )
    golden("reports/nothing_to_change.txt", rendered(run_view(report_run("run-1", settled.trials, settled))))


def test_a_cached_plan_says_so_and_from_when_it_is() -> None:
    cached = replace(PLAN, cached_from="2026-11-21T00:46:27.123456+00:00")
    shown = rendered(run_view(report_run("run-1", cached.trials, cached)))
    assert "Cached plan of 2026-11-21 00:46 UTC" in shown
    assert (
        shown.replace("--fresh plans anew.\n", "").count("\n")
        == rendered(run_view(report_run("run-1", PLAN.trials, PLAN))).count("\n") + 1
    )


def test_an_interrupted_run(golden) -> None:
    golden(
        "reports/interrupted_run.txt",
        rendered(run_view(report_run("run-1", [CURRENT, SLOW], None, status=INTERRUPTED))),
    )


def test_the_lines_that_appear_while_trials_run(golden) -> None:
    lines = [trial_lines(trial_row(each), was_resumed=each is CURRENT) for each in PLAN.trials]
    golden("reports/trial_lines.txt", rendered(*chain.from_iterable(lines)))


def test_prose_that_is_wider_than_the_terminal_goes_on_indented_and_whole() -> None:
    crowded = replace(SLOW, outcome=replace(SLOW.outcome, evidence="step 1 still running after nine minutes"))
    lines = hanging(trial_lines(trial_row(crowded), was_resumed=False), indent=EVIDENCE_INDENT)
    assert rendered(lines, width=32).splitlines()[-2:] == ["      step 1 still running after", "      nine minutes"]


def test_a_line_as_wide_as_the_terminal_is_one_line() -> None:
    line = Text("note: twelve")
    assert rendered(hanging([line], indent=2), width=12) == "note: twelve\n"
    assert rendered(hanging([line], indent=2), width=11) == "note:\n  twelve\n"


def test_what_was_presumed_for_several_recipes_is_said_once() -> None:
    recipe = Recipe(micro_batch_size=8)
    found = [replace(estimate(600, recipe), notes=("routers choose evenly.", own)) for own in ("of 8.", "of 16.")]
    lines = rendered(remarks_view(found)).split("\n")
    assert [line.strip() for line in lines if "note:" in line] == [
        "note: routers choose evenly.",
        "note: of 8.",
        "note: of 16.",
    ]


def test_estimates_of_several_recipes(golden) -> None:
    recipes = [Recipe(micro_batch_size=size) for size in (8, 16, 32)]
    outcomes = (OutcomeKind.FITS, OutcomeKind.ALLOCATOR_RETRIES, OutcomeKind.DEVICE_OUT_OF_MEMORY)
    estimates = [
        replace(estimate(peak, recipe), outcome=outcome)
        for peak, recipe, outcome in zip((600, 1100, 2100), recipes, outcomes, strict=True)
    ]
    golden("reports/estimates.txt", rendered(estimates_view(estimates)))


def test_the_largest_micro_batch_is_told_for_each_limit() -> None:
    def largest(precision: str, share: float, size: int | None) -> LargestMicroBatch:
        return LargestMicroBatch(
            device_name="cpu",
            device_total_bytes=10 * GIB,
            precision=Precision(precision),
            share=share,
            limit_bytes=round(share * 10 * GIB),
            micro_batch_size=size,
            reached_cap=size == 64,
        )

    sizes = (("fp32", 0.8, None), ("fp32", 1.0, 3), ("bf16", 0.8, 48), ("bf16", 1.0, 64))
    lines = rendered(largest_table([largest(*each) for each in sizes])).split("\n")
    assert [line.split("  ") for line in lines if "within" in line] == [
        ["precision", "within 80% (8.00 GiB)", "within 100% (10.00 GiB)"]
    ]
    assert [line.split() for line in lines if "fp32" in line or "bf16" in line] == [
        ["fp32", "not", "even", "1", "3"],
        ["bf16", "48", "64", "or", "more"],
    ]


def test_several_devices_are_rows_of_one_table() -> None:
    found = [replace(estimate(500, Recipe(micro_batch_size=8)), device_name=name) for name in ("t4", "l4")]
    title, *rows = rendered(estimates_view(found)).splitlines()
    assert title == "net on 2 devices"
    assert [row.split()[:2] for row in rows[:3]] == [["device", "recipe"], ["t4", "fp32,"], ["l4", "fp32,"]]
    largest = [
        LargestMicroBatch(
            device_name=name,
            device_total_bytes=size * GIB,
            precision=Precision.FP32,
            share=share,
            limit_bytes=round(share * size * GIB),
            micro_batch_size=round(share * size),
            reached_cap=False,
        )
        for name, size in (("t4", 10), ("l4", 20))
        for share in (0.8, 1.0)
    ]
    assert [line.split() for line in rendered(largest_table(largest)).splitlines()[1:]] == [
        ["device", "memory", "precision", "within", "80%", "within", "100%"],
        ["t4", "10.00", "GiB", "fp32", "8", "10"],
        ["l4", "20.00", "GiB", "fp32", "16", "20"],
    ]


def test_estimates_say_how_far_an_unmeasured_context_lets_the_process_peak_move() -> None:
    found = replace(estimate(600, Recipe(micro_batch_size=8)), peak_process_range_bytes=(580 * MIB, 650 * MIB))
    even = replace(found, peak_process_range_bytes=(550 * MIB, 650 * MIB))
    table, evenly = (" ".join(rendered(estimates_view([each])).split()) for each in (found, even))
    assert "up to 20.00 MiB less or 50.00 MiB more, as the context is not measured;" in table
    assert "give or take 50.00 MiB" in evenly
    assert "580.0 MiB to 650.0 MiB" in rendered(breakdown_view(found))


def test_what_the_largest_holders_leave_out_is_one_row() -> None:
    shares = tuple(PeakShare(name=f"layer{number}", held_bytes=50 * MIB) for number in range(10))
    found = replace(estimate(600, Recipe(micro_batch_size=8)), top_modules=shares, top_operators=shares[:1])
    rows = [line.split("  ") for line in rendered(breakdown_view(found)).split("\n") if "others" in line]
    assert [[each.strip() for each in row if each] for row in rows] == [
        ["(all others)", "100.0 MiB", "20%"],  # of 500 MiB; eight of 50 are shown
        ["(all others)", "450.0 MiB", "90%"],
    ]


def test_estimates_say_how_much_more_samples_that_vary_may_take() -> None:
    found = estimate(600, Recipe(micro_batch_size=8))
    measured = replace(found, peak_process_range_bytes=(600 * MIB, 650 * MIB), samples_vary=True)
    reckoned = replace(measured, peak_process_range_bytes=(580 * MIB, 650 * MIB))
    of_both = "up to 20.00 MiB less or 50.00 MiB more, as the context is not measured and samples may differ; what is"
    assert "process: up to 50.00 MiB more, as samples may differ; what is" in rendered(
        estimates_view([measured]), width=200
    )
    assert f"process: {of_both}" in " ".join(rendered(estimates_view([reckoned]), width=200).split())


def test_a_note_on_some_recipes_names_them() -> None:
    small, large = (estimate(100 * size, Recipe(micro_batch_size=size)) for size in (2, 4))
    elsewhere = replace(large, device_name="t4", notes=("of all", "of the larger"))
    told = [replace(small, notes=("of all", "of the smaller")), replace(elsewhere, device_name="l4"), elsewhere]
    assert [line for line in rendered(remarks_view(told, ["of the run"])).splitlines() if line.startswith("note")] == [
        "note: of the run",
        "note: of all",
        "note: fp32, 2 x 1: of the smaller",
        "note: fp32, 4 x 1: of the larger",
    ]


def test_a_search_that_takes_more_than_later_steps_has_a_column() -> None:
    plain = estimate(600, Recipe(micro_batch_size=8))
    searching = replace(plain, peak_search_bytes=plain.peak_reserved_bytes + 300 * MIB)
    said = rendered(estimates_view([searching]))
    assert "800.0 MiB" in said
    assert "search: reserved in the first step while cuDNN tries its algorithms" in " ".join(said.split())
    smaller = replace(plain, peak_search_bytes=plain.peak_reserved_bytes)
    assert rendered(estimates_view([smaller])) == rendered(estimates_view([plain]))


def test_where_samples_vary_what_the_allocator_comes_to_hold_has_a_column() -> None:
    plain = estimate(600, Recipe(micro_batch_size=8))
    held_bytes = 2 * plain.peak_reserved_bytes
    drawn = DrawnSteps(
        steps=30,
        peak_reserved_bytes=held_bytes,
        peak_reserved_expandable_bytes=plain.peak_reserved_bytes,
        outcome=OutcomeKind.FITS,
    )
    said = " ".join(rendered(estimates_view([replace(plain, drawn=drawn)]), width=200).split())
    assert format_bytes(held_bytes) in said
    assert "drawn: reserved within 30 steps on batches of random samples" in said
    assert f"expandable_segments:True keeps it within {format_bytes(plain.peak_reserved_bytes)}" in said
    little = replace(drawn, peak_reserved_bytes=plain.peak_reserved_bytes)
    assert rendered(estimates_view([replace(plain, drawn=little)])) == rendered(estimates_view([plain]))


def test_a_range_estimated_with_a_reckoned_context_stands_beside_what_was_measured(golden) -> None:
    ranges = ((CURRENT, (250, 320)), (BEST, (600, 690)), (SLOW, (230, 300)))  # MiB; the last was never measured
    reckoned = [
        replace(each, estimate=replace(each.estimate, peak_process_range_bytes=(least * MIB, most * MIB)))
        for each, (least, most) in ranges
    ]
    report = report_run("run-1", reckoned, None)
    golden("reports/ranges.txt", rendered(range_table(report.trials)))
    assert "at least" in rendered(run_view(report))
    assert "at least" not in rendered(run_view(report_run("run-1", PLAN.trials, PLAN)))


def test_no_line_of_a_report_is_wider_than_the_terminal() -> None:
    text = rendered(run_view(report_run("run-1", PLAN.trials, PLAN)))
    assert max(map(len, text.splitlines())) <= 80


def test_accumulation_is_not_compared_where_no_run_with_it_fits() -> None:
    failed = trial(4, None, accumulation_steps=2, kind=OutcomeKind.TIMEOUT)
    assert "global batch" not in rendered(plan_view(report_run("run-1", (CURRENT, failed), None)))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (RunStatus.INTERRUPTED, "interrupted; the same probe command resumes it"),
        (RunStatus.RUNNING, "still running"),
        (RunStatus.FINISHED, "a probe, which makes no plan"),
    ],
)
def test_a_run_without_plan_or_trial_is_a_line_that_says_how_it_stands(status: RunStatus, said: str) -> None:
    assert rendered(run_view(report_run("run-1", (), None, status=status))) == f"Run run-1: {said}\n"


def test_a_run_that_failed_says_why_and_how_each_trial_ended(golden) -> None:
    why = "nothing fits 1000.0 MiB at max-util 0.8: micro-batch 1 needs 900.0 MiB; memplan estimate shows more"
    kind, evidence = OutcomeKind.HOST_OUT_OF_MEMORY, "stopped at 1010.0 MiB resident, above its 1000.0 MiB"
    trials = (trial(4, None, kind=kind, evidence=evidence, estimated_mib=980), replace(SLOW, number=2))
    report = report_run("run-1", trials, None, status=RunStatus.FAILED, failure=why)
    golden("reports/failed_run.txt", rendered(run_view(report)))


def test_accumulation_is_not_compared_with_nothing() -> None:
    alone = trial(4, 300, accumulation_steps=2)
    assert "global batch" not in rendered(plan_view(report_run("run-1", (alone,), None)))


def test_accumulation_is_compared_with_what_is_recommended_where_that_takes_the_batch_at_once() -> None:
    split, whole = trial(4, 300, accumulation_steps=3), trial(12, 700)
    report = report_run("run-1", (split, whole), plan(split.recipe, whole.recipe))
    compared = [line.split()[1] for line in rendered(accumulation_table(report)).splitlines() if "fp32, " in line]
    assert compared == ["4", "12"]


def test_a_recipe_that_ran_twice_has_the_speed_of_its_fastest_run_in_every_table() -> None:
    runs = (trial(4, 300, samples_per_s=10), trial(4, 310, accumulation_steps=2), trial(4, 300, samples_per_s=20))
    assert fastest_run(runs[0].recipe, report_run("run-1", runs, None).trials) == 20
    text = rendered(plan_view(report_run("run-1", runs, None)))
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("fp32, 4 x 1 ")] == ["20.0"]
    again = trial(12, 700, samples_per_s=30)
    assert report_run("run-1", (*PLAN.trials, again), PLAN).precisions[0].samples_per_s == 30


def test_without_an_estimate_only_what_was_measured_is_shown() -> None:
    run = trial(4, 500)
    table = component_table(trial_row(run), compare(None, run.outcome.measurement))
    assert [column.header for column in table.columns] == ["component", "measured"]


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, "-"), (2.018, "2.02"), (22.98, "23.0"), (101.2, "101"), (999.4, "999"), (999.8, "1000"), (4832.7, "4833")],
)
def test_rates_are_never_written_with_an_exponent(rate: float | None, text: str) -> None:
    assert rate_text(rate) == text


def test_the_page_names_its_run_and_needs_nothing_from_elsewhere() -> None:
    page = run_to_html(report_run("run-1", PLAN.trials, PLAN))
    assert "<title>memplan: run run-1</title>" in page
    assert "in the band" in page
    for reference in ("<script", "src=", "href=", "@import"):
        assert reference not in page
