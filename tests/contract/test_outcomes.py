"""Every way a live trial can end, with real children: each lands in its own kind, with its evidence."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import psutil
import pytest
import torch

from memplan import Workload
from memplan.devices.cards import DeviceKind, DeviceSpec
from memplan.probe.launcher import run_trial, trial_template
from memplan.probe.trials import StepLimit, TrialPhase, TrialProgress, TrialRequest
from memplan.recipe import Precision, Recipe
from memplan.results import Outcome, OutcomeKind
from memplan.units import GIB, KIB, MIB
from memplan.workload import PickledWorkload, WorkloadReference, WorkloadSource
from tests.cpu_budgets import cpu_budget
from tests.making import reference

if TYPE_CHECKING:
    from memplan.children import Template

HERE = Path(__file__).parent
OURS = "MEMPLAN_TEST_OUTCOMES"
# One after another: a kill by the kernel is known by a counter of the whole machine.
pytestmark = pytest.mark.xdist_group("outcomes")


def named(function: str) -> WorkloadReference:
    return reference(f"trial_workloads:{function}", HERE)


def request(source: WorkloadSource, *, budget_bytes: int = 2 * GIB, recipe: Recipe | None = None, **limits: Any):
    return TrialRequest(
        source=source,
        recipe=recipe or Recipe(micro_batch_size=8),
        device=DeviceSpec(name="cpu", kind=DeviceKind.CPU, total_bytes=budget_bytes),
        budget_bytes=budget_bytes,
        **limits,
    )


@pytest.fixture(scope="module", autouse=True)
def template():
    """One template for all, and a variable by which everything below it is known."""
    with pytest.MonkeyPatch.context() as patch, trial_template() as made:
        patch.setenv(OURS, str(os.getpid()))
        yield made


@pytest.fixture
def end_of(template: Template):
    def run(function: str, **changes: Any) -> Outcome:
        return run_trial(request(named(function), **changes), template=template)

    return run


@pytest.fixture(autouse=True)
def _no_process_is_left_behind():
    yield
    deadline = time.monotonic() + 10
    while left := [each for each in psutil.process_iter() if _is_left_behind(each)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _is_left_behind(process: psutil.Process) -> bool:
    """Whether a process comes from these tests and is not the template, which is this process's own child."""
    try:
        is_ours = process.environ().get(OURS) == str(os.getpid()) and process.pid != os.getpid()
        return is_ours and process.ppid() != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.mark.parametrize("how", ["started from nothing", "forked"])
def test_a_recipe_that_fits_is_measured_component_by_component(template: Template, how: str) -> None:
    heard: list[TrialProgress] = []
    forks_from = template if how == "forked" else None
    outcome = run_trial(request(named("fits")), on_progress=heard.append, template=forks_from)
    assert template.is_running == (how == "forked")
    assert outcome.kind is OutcomeKind.FITS, outcome
    measured = outcome.measurement
    assert measured is not None
    assert measured.breakdown.parameters == MIB
    assert measured.breakdown.inputs == 8 * 2048
    assert 2 * MIB <= measured.breakdown.optimizer_state <= 2 * MIB + 64
    assert measured.breakdown.total_bytes == measured.peak_process_bytes == measured.peak_device_bytes
    # at the peak, in the optimizer's step: weights, gradients, two moments and its temporaries, each of 1 MiB
    assert measured.breakdown.gradients == MIB
    assert 5 * MIB < measured.peak_allocated_bytes < 8 * MIB
    assert measured.breakdown.context > 100 * MIB
    assert len(measured.losses) == 5
    assert list(measured.losses) == sorted(measured.losses, reverse=True)
    assert len(measured.step_times_s) == 20 or (len(measured.step_times_s) >= 3 and sum(measured.step_times_s) >= 1)
    assert measured.peak_reserved_bytes is None
    before_steps = [TrialPhase.STARTING, TrialPhase.IMPORTING, TrialPhase.BUILDING]
    assert [each.phase for each in heard if each.step is None] == before_steps
    assert [each.step for each in heard if each.step is not None] == [1, 2, 3, 4, 5, 6]


def trial_templates() -> list[psutil.Process]:
    """What trials are forked from; other tests leave a template of traces beside it."""
    return [each for each in psutil.Process().children() if "memplan.probe.worker" in each.cmdline()]


def test_a_trial_whose_template_dies_is_run_again_and_not_lost(end_of, template: Template) -> None:
    end_of("fits")
    templates = trial_templates()
    assert len(templates) == 1
    outcome = run_trial(
        request(named("fits")),
        on_progress=lambda progress: templates.pop().kill() if templates else None,
        template=template,
    )
    assert not templates
    assert outcome.kind is OutcomeKind.FITS, outcome


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        (TrialPhase.STARTING, OutcomeKind.CRASH),
        (TrialPhase.BUILDING, OutcomeKind.CRASH),
        (TrialPhase.WARMING_UP, OutcomeKind.CRASH),
        (TrialPhase.TIMING, OutcomeKind.CRASH),
        (TrialPhase.ATTRIBUTING, OutcomeKind.FITS),  # what counts has been measured by then
    ],
)
def test_a_trial_killed_from_outside_at_any_moment_ends_as_what_is_known(
    end_of, template: Template, phase: TrialPhase, kind: OutcomeKind
) -> None:
    def kill(progress: TrialProgress) -> None:
        if progress.phase is phase:
            for fork in trial_templates()[0].children():
                fork.kill()

    end_of("fits")
    outcome = run_trial(request(named("slow_in_every_step")), on_progress=kill, template=template)
    assert outcome.kind is kind, outcome
    assert template.is_running
    assert end_of("fits").kind is OutcomeKind.FITS


def test_a_typical_batch_is_reported_beside_the_worst(end_of) -> None:
    outcome = end_of("ragged")
    assert outcome.kind is OutcomeKind.FITS, outcome
    measured = outcome.measurement
    assert measured is not None
    assert measured.typical is not None
    assert measured.breakdown.inputs == 8 * MIB  # eight samples of 1024 rows of 1 KiB
    # input, hidden layer and its gradient scale with the rows, of which a typical sample has a quarter
    assert measured.typical.peak_allocated_bytes < measured.peak_allocated_bytes / 2
    assert measured.typical.samples_per_s > 0
    assert outcome.notes == ()


def test_what_evaluation_takes_between_steps_is_in_the_peaks_and_not_in_the_times(end_of) -> None:
    outcome = end_of("evaluates")
    assert outcome.kind is OutcomeKind.FITS, outcome
    assert len(outcome.measurement.losses) == 5
    breakdown = outcome.measurement.breakdown
    # the second batch of 16 MiB, its output and that of the first, beside the eight samples of 1 KiB
    assert (breakdown.inputs, breakdown.temporaries) == (16 * MIB + 8 * KIB, 32 * MIB)
    assert outcome.notes == ()


def test_of_a_model_that_the_first_fsdp_wraps_one_replica_is_tried(end_of) -> None:
    outcome = end_of("wrapped_by_the_first_fsdp", recipe=Recipe(micro_batch_size=16, world_size=4))
    assert outcome.kind is OutcomeKind.FITS, outcome
    breakdown = outcome.measurement.breakdown
    assert (breakdown.parameters, breakdown.optimizer_state // KIB) == (256 * KIB, 512)


def test_of_a_sharded_model_one_replica_is_tried(end_of) -> None:
    outcome = end_of("sharded", recipe=Recipe(micro_batch_size=16, world_size=4))
    assert outcome.kind is OutcomeKind.FITS, outcome
    breakdown = outcome.measurement.breakdown
    assert breakdown.optimizer_state // KIB == 512  # a quarter of 1 MiB, twice
    assert breakdown.gradients == 256 * KIB


def test_evaluation_beyond_the_budget_is_out_of_memory(end_of) -> None:
    outcome = end_of("evaluates_beyond_the_budget", budget_bytes=GIB)
    assert outcome.kind is OutcomeKind.HOST_OUT_OF_MEMORY, outcome


def test_a_trial_goes_on_without_an_evaluation_that_fails_and_says_so(end_of) -> None:
    outcome = end_of("fails_to_evaluate")
    assert outcome.kind is OutcomeKind.FITS, outcome
    (note,) = outcome.notes
    assert note.startswith("evaluation failed and is in no peak: AttributeError: ")
    assert "no_such_layer" in note
    assert "trial_workloads.py:" in note
    assert outcome.measurement.breakdown.temporaries < MIB


def test_what_every_step_keeps_is_told_since_no_batch_survives_it(end_of) -> None:
    outcome = end_of("keeps_outputs", recipe=Recipe(micro_batch_size=16))
    assert outcome.kind is OutcomeKind.FITS
    assert outcome.measurement.notes[0].startswith("each step keeps 8.00 KiB per sample that the next ones do not free")
    assert end_of("fits").measurement.notes == ()


def test_where_samples_turn_out_alike_no_typical_batch_is_reported(end_of) -> None:
    outcome = end_of("alike")
    assert outcome.kind is OutcomeKind.FITS, outcome
    assert outcome.measurement is not None
    assert outcome.measurement.typical is None


def test_a_sample_of_absurd_size_is_named_even_where_it_runs_out_of_memory(end_of) -> None:
    outcome = end_of("ragged_with_an_outlier", budget_bytes=cpu_budget(600).total_bytes)
    assert outcome.kind is OutcomeKind.HOST_OUT_OF_MEMORY, outcome
    assert "1 sample decides the worst batch alone: 40 (size 102400)" in outcome.notes[0]


def test_a_workload_made_in_the_callers_process_travels() -> None:
    width = 512
    made = Workload(
        model=lambda: torch.nn.Linear(width, width, bias=False),
        batch=lambda size: {"rows": torch.ones(size, width)},
        loss=lambda model, batch: model(batch["rows"]).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    source = PickledWorkload(payload=cloudpickle.dumps(made), fingerprint="x", search_path=())
    recipe = Recipe(micro_batch_size=2, accumulation_steps=2, precision="bf16", learning_rate=0.5)
    outcome = run_trial(request(source, recipe=recipe))
    assert outcome.kind is OutcomeKind.FITS, outcome
    assert outcome.measurement is not None
    assert outcome.measurement.breakdown.optimizer_state == 0


@pytest.mark.parametrize(
    "function",
    [
        "needs_one_gib_at_once",
        "grows_by_16_mib_at_a_time",
        "fills_python_memory",
        "fills_numpy_memory",
        "grows_in_forked_processes",
    ],
)
def test_a_recipe_above_the_budget_ends_as_out_of_memory(end_of, function: str) -> None:
    outcome = end_of(function, budget_bytes=cpu_budget(800).total_bytes)
    assert outcome.kind is OutcomeKind.HOST_OUT_OF_MEMORY, outcome
    assert outcome.evidence
    assert outcome.measurement is None


def test_the_peak_of_any_step_counts_and_not_that_of_the_first(end_of) -> None:
    once, late = end_of("fits").measurement, end_of("takes_more_in_the_second_step").measurement
    assert once is not None
    assert late is not None
    assert late.peak_process_bytes - once.peak_process_bytes > 190 * MIB


def made_group(folder: Path, limit: str) -> Path | None:
    """A control group with 200 MiB; None where this process may not make one."""
    group = folder / f"memplan-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(200 * MIB))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        return None
    return group


@pytest.fixture
def small_group(monkeypatch: pytest.MonkeyPatch):
    """A small control group, of version 1 or 2, named to the workloads."""
    root = Path("/sys/fs/cgroup")
    group = made_group(root / "memory", "memory.limit_in_bytes") or made_group(root, "memory.max")
    if group is None:
        pytest.skip("control groups cannot be made here")
    monkeypatch.setenv("MEMPLAN_TEST_GROUP", str(group))
    yield
    group.rmdir()


@pytest.mark.usefixtures("small_group")
def test_a_kill_by_the_kernel_is_memory_of_the_host() -> None:
    outcome = run_trial(request(named("grows_in_a_small_group"), budget_bytes=4 * GIB))
    assert outcome.kind is OutcomeKind.HOST_OUT_OF_MEMORY, outcome
    assert outcome.evidence.startswith("killed by the kernel for want of memory (its oom_kill counter rose)")


def test_steps_that_ran_above_the_budget_do_not_count_as_fitting(end_of) -> None:
    # what the interpreter and torch take is above 100 MiB, yet the kernel's limit leaves 128 MiB for the steps
    outcome = end_of("fits", budget_bytes=100 * MIB)
    assert outcome.kind is OutcomeKind.HOST_OUT_OF_MEMORY, outcome
    assert "100.0 MiB" in outcome.evidence


def test_the_users_own_exception_keeps_its_traceback(end_of) -> None:
    outcome = end_of("raises")
    assert outcome.kind is OutcomeKind.USER_ERROR, outcome
    assert "KeyError" in outcome.evidence
    assert "trial_workloads.py:" in outcome.evidence
    assert "in stumble" in outcome.log_tail
    assert "the user's own mistake" in outcome.log_tail


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises_while_made", "the config makes no sense"),
        ("loss_of_every_sample", "shape (8,)"),
        ("batch_of_always_four", "for 8 and 4 samples it returned tensors of the same shapes"),
        ("calls_exit", "exit(3)"),
    ],
)
def test_a_broken_workload_is_the_users_error_in_one_line(end_of, function: str, said: str) -> None:
    outcome = end_of(function)
    assert outcome.kind is OutcomeKind.USER_ERROR, outcome
    assert said in outcome.evidence
    assert "\n" not in outcome.evidence


def test_a_loss_that_is_not_a_number_is_reported_with_its_measurement(end_of) -> None:
    outcome = end_of("not_a_number")
    assert outcome.kind is OutcomeKind.NON_FINITE_LOSS, outcome
    assert "nan" in outcome.evidence
    assert outcome.measurement is not None


@pytest.mark.parametrize(
    ("function", "limits", "said"),
    [
        ("raises_in_the_sixth_step", {}, "KeyError: 'sixth'"),
        ("hangs_in_the_sixth_step", {"time_limit_s": 10.0}, "still attributing, step 6 of 6"),
        ("dies_in_the_sixth_step", {}, "the attributing step did not end"),
    ],
)
def test_what_happens_in_the_attributing_step_costs_the_breakdown_alone(
    end_of, function: str, limits: dict[str, float], said: str
) -> None:
    outcome = end_of(function, timed_s=0.0, **limits)
    assert outcome.kind is OutcomeKind.FITS, outcome
    assert f"what the peak consists of is not known: {said}" in outcome.evidence
    measured = outcome.measurement
    assert measured is not None
    assert measured.breakdown.total_bytes == measured.peak_process_bytes
    assert measured.breakdown.temporaries == measured.peak_process_bytes - measured.breakdown.context
    assert len(measured.losses) == 5


def test_a_trial_on_the_cpu_sees_no_card(end_of) -> None:
    outcome = end_of("wants_to_see_no_card")
    assert outcome.kind is OutcomeKind.FITS, outcome


def test_warm_up_lasts_until_the_gradient_scaler_has_found_its_scale(end_of) -> None:
    outcome = end_of("overflows_at_first", recipe=Recipe(micro_batch_size=8, precision="fp16"))
    assert outcome.kind is OutcomeKind.FITS, outcome
    assert outcome.measurement is not None
    assert outcome.measurement.loss_scale is not None
    assert outcome.measurement.loss_scale < 2**14
    assert len(outcome.measurement.losses) == 5
    assert len(set(outcome.measurement.losses)) == 5  # every one of them moved the weights


def test_a_scaler_that_never_settles_is_a_loss_that_is_not_finite(end_of) -> None:
    outcome = end_of("not_a_number", recipe=Recipe(micro_batch_size=8, precision="fp16"))
    assert outcome.kind is OutcomeKind.NON_FINITE_LOSS, outcome
    assert outcome.evidence == "the gradient scaler skipped every step"


def test_a_hang_is_stopped_and_says_where_it_hung(end_of) -> None:
    outcome = end_of("hangs", step_limit=StepLimit(limit_s=2.0, usual_s=0.1, usual_precision=Precision.BF16))
    assert outcome.kind is OutcomeKind.TIMEOUT, outcome
    assert outcome.evidence == "step 1 still running after 2 s (bf16: 0.1 s)"
    assert "in wait_for_a_lock_that_nobody_releases" in outcome.log_tail


def test_a_recipe_whose_steps_are_slow_is_given_up_in_the_second(end_of) -> None:
    limit = StepLimit(limit_s=60.0, usual_s=0.01, usual_precision=Precision.FP32, slow_s=0.1)
    outcome = end_of("takes_a_third_of_a_second_a_step", step_limit=limit)
    assert outcome.kind is OutcomeKind.TIMEOUT, outcome
    said = r"given up in step [23] after 0 s: the one before took 0\.\d s \(fp32: 0\.0 s\)"
    assert re.fullmatch(said, outcome.evidence)


def test_a_trial_that_takes_too_long_in_all_is_stopped(end_of) -> None:
    outcome = end_of("hangs", time_limit_s=1.0)
    assert outcome.kind is OutcomeKind.TIMEOUT, outcome
    assert outcome.evidence.endswith("after 1 s (limit 1 s)")


def test_time_to_compile_is_told_and_is_no_part_of_a_step(template: Template) -> None:
    heard: list[TrialProgress] = []
    held_to = request(named("compiles_slowly"), step_limit=StepLimit(limit_s=1.0), timed_s=0.0)
    outcome = run_trial(held_to, on_progress=heard.append, template=template)
    assert outcome.kind is OutcomeKind.FITS, outcome
    of_first_step = [each.phase for each in heard if each.step == 1]
    assert of_first_step == [TrialPhase.WARMING_UP, TrialPhase.COMPILING, TrialPhase.WARMING_UP]


def test_a_trial_may_run_uncompiled_what_is_compiled(template: Template) -> None:
    heard: list[TrialProgress] = []
    uncompiled = request(named("compiles_slowly"), runs_compiled=False, timed_s=0.0)
    outcome = run_trial(uncompiled, on_progress=heard.append, template=template)
    assert outcome.kind is OutcomeKind.FITS, outcome
    assert TrialPhase.COMPILING not in {each.phase for each in heard}


def test_building_has_a_limit_of_its_own(end_of) -> None:
    built = end_of("takes_long_to_build", time_limit_s=1.5, timed_s=0.0)
    assert built.kind is OutcomeKind.FITS, built
    outcome = end_of("takes_long_to_build", build_limit_s=1.0)
    assert outcome.kind is OutcomeKind.TIMEOUT, outcome
    assert outcome.evidence == "still building after 1 s (limit 1 s)"
    assert "in build_slowly" in outcome.log_tail


def test_loader_workers_that_a_step_forks_end_with_the_trial(end_of) -> None:
    outcome = end_of("reads_with_forked_loaders", budget_bytes=4 * GIB)
    assert outcome.kind is OutcomeKind.FITS, outcome


@pytest.mark.parametrize(
    ("function", "workers", "most_per_s"), [("loads_at_100_a_second", 0, 100), ("loads_at_100_a_second_twice", 2, 200)]
)
def test_a_data_loader_is_timed_where_that_is_asked_for(end_of, function: str, workers: int, most_per_s: float) -> None:
    outcome = end_of(function, budget_bytes=4 * GIB, loader_limit_s=30.0)
    assert outcome.kind is OutcomeKind.FITS, outcome
    assert outcome.measurement.loader.workers == workers
    assert 0 < outcome.measurement.loader.samples_per_s <= 1.5 * most_per_s  # batches of a queue come at once


def test_a_data_loader_is_left_alone_otherwise(end_of) -> None:
    outcome = end_of("fails_to_load")
    assert outcome.measurement.loader is None
    assert outcome.notes == ()


@pytest.mark.parametrize(
    ("function", "limit_s", "reason"),
    [
        ("fails_to_load", 30.0, "no samples.bin"),
        ("hangs_while_it_loads", 2.0, "still timing the data loader after 2 s"),
    ],
)
def test_a_data_loader_that_fails_or_hangs_is_told_and_costs_nothing_else(
    end_of, function: str, limit_s: float, reason: str
) -> None:
    outcome = end_of(function, budget_bytes=4 * GIB, loader_limit_s=limit_s)
    assert outcome.kind is OutcomeKind.FITS, outcome
    assert outcome.measurement.breakdown.parameters == 1 * MIB
    assert outcome.measurement.loader is None
    (note,) = outcome.notes
    assert note.startswith("the data loader was not timed")
    assert reason in note


def test_a_data_loader_that_ends_the_process_is_told_and_costs_nothing_else(end_of) -> None:
    outcome = end_of("ends_the_process_while_it_loads", budget_bytes=4 * GIB, loader_limit_s=30.0)
    assert outcome.kind is OutcomeKind.FITS, outcome
    assert outcome.notes == ("the data loader was not timed: it ended the process with status 3",)


def test_a_worker_that_ignores_every_polite_signal_is_stopped(end_of) -> None:
    outcome = end_of("hangs_and_ignores_signals", step_limit=StepLimit(limit_s=1.0))
    assert outcome.kind is OutcomeKind.TIMEOUT, outcome


def test_a_flood_of_output_costs_neither_memory_nor_disk(end_of) -> None:
    before = psutil.Process().memory_info().rss
    outcome = end_of("floods", budget_bytes=4 * GIB)
    assert outcome.kind is OutcomeKind.FITS, outcome
    assert len(outcome.log_tail) <= 64 * 1024
    assert outcome.log_tail.rstrip().endswith("the end")
    assert psutil.Process().memory_info().rss - before < 50 * MIB


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("segfaults", "SIGSEGV"),
        ("kills_itself", "SIGKILL"),
        ("exits_at_once", "exit status 3"),
    ],
)
def test_a_child_that_dies_without_a_word_is_a_crash(end_of, function: str, said: str) -> None:
    outcome = end_of(function)
    assert outcome.kind is OutcomeKind.CRASH, outcome
    assert said in outcome.evidence


def test_output_and_forked_processes_do_not_disturb_a_trial(end_of) -> None:
    outcome = end_of("prints_a_lot_and_leaves_processes", budget_bytes=4 * GIB)
    assert outcome.kind is OutcomeKind.FITS, outcome
    assert len(outcome.log_tail) <= 64 * 1024


def test_where_data_fill_no_batch_the_outcome_says_how_many_samples_there_are(end_of) -> None:
    outcome = end_of("batch_of_at_most_thirty", recipe=Recipe(micro_batch_size=64))
    assert (outcome.kind, outcome.available_samples) == (OutcomeKind.USER_ERROR, 30), outcome
    assert "for 64 it returned a tensor of shape (30, 512)" in outcome.evidence
    assert end_of("batch_of_at_most_thirty").available_samples is None


def test_a_card_that_code_chooses_where_there_is_none_is_the_cpu(end_of) -> None:
    assert end_of("chooses_a_card").kind is OutcomeKind.FITS
