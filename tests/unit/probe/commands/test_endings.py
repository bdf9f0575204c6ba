"""How the ending of a training command is judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from memplan.probe.commands.endings import (
    CommandEnding,
    for_want_of_neighbours,
    for_want_of_samples,
    judge_ending,
)
from memplan.probe.commands.events import Event, parse_event
from memplan.probe.trials import TrialVerdict
from memplan.recipe import Recipe
from memplan.results import OutcomeKind

STARTED = '{"event": "started", "pid": 7}'
IMPORTED = '{"event": "imported", "pid": 7}'
FAILED = '{"event": "failed", "pid": 7, "text": "RuntimeError: of a figure"}'
BUILT = '{"event": "built", "pid": 7, "resident_bytes": 300, "parameters_bytes": 10}'
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB."
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n'


def step(number: int) -> str:
    counts = '"passes": 1, "is_loss_finite": true, "skipped": 0, "optimizers": 1'
    figures = f'{counts}, "resident_peak_bytes": 9, "resident_file_bytes": 1'
    return f'{{"event": "step", "pid": 7, "step": {number}, "duration_s": 0.5, {figures}, "card": null}}'


def raised(*types: str, text: str = "", place: str = "train.py:9") -> str:
    chain = [{"types": types, "text": text}]
    return json.dumps({"event": "raised", "pid": 7, "chain": chain, "place": place})


def judged(*lines: str, code: int = 1, log: str = "", full: bool = False, killed: bool = False):
    events: list[Event] = [parse_event(line) for line in lines]
    return judge_ending(
        CommandEnding(events=events, return_code=code, log_tail=log, is_memory_full=full, was_killed_by_kernel=killed)
    )


@pytest.mark.parametrize(
    ("types", "text", "kind"),
    [
        (("OutOfMemoryError", "RuntimeError", "Exception"), OOM, OutcomeKind.DEVICE_OUT_OF_MEMORY),
        (("RuntimeError", "Exception"), "CUDA error: CUBLAS_STATUS_ALLOC_FAILED", OutcomeKind.DEVICE_OUT_OF_MEMORY),
        (("MemoryError", "Exception"), "", OutcomeKind.HOST_OUT_OF_MEMORY),
        (("RuntimeError", "Exception"), "DefaultCPUAllocator: can't allocate memory", OutcomeKind.HOST_OUT_OF_MEMORY),
        (("RuntimeError", "Exception"), "CUDA error: invalid configuration argument", OutcomeKind.KERNEL_FAILURE),
        (("ValueError", "Exception"), "unknown backbone", OutcomeKind.USER_ERROR),
    ],
)
def test_an_uncaught_exception_is_judged_by_type_and_text(types: tuple[str, ...], text: str, kind: OutcomeKind) -> None:
    assert judged(STARTED, raised(*types, text=text)).kind is kind


def test_a_users_error_names_the_users_line() -> None:
    assert judged(raised("ValueError", "Exception", text="no")).evidence == "ValueError: no (train.py:9)"


def test_a_script_that_asks_for_input_is_told_that_there_is_none() -> None:
    said = "EOFError: EOF when reading a line (train.py:9); trials have no standard input to read from"
    assert judged(raised("EOFError", "Exception", text="EOF when reading a line")).evidence == said


def test_a_lock_file_may_be_of_the_trial_before() -> None:
    said = "; trials end without exit handlers, so that a lock file of the one before remains"
    assert judged(raised("FileExistsError", "OSError", "Exception", text="[Errno 17]")).evidence.endswith(said)


def test_a_file_that_is_looked_for_beside_the_copy_of_a_config_is_told_not_to_be_there() -> None:
    copy = Path("/tmp/memplan-x/config/run.sh")  # noqa: S108 - a name alone
    verdict = TrialVerdict(kind=OutcomeKind.USER_ERROR, evidence=f"can't open file '{copy.parent}/train.py'")
    remedy = "; only the trial's copy of run.sh lies there, so that files are best named from the working folder"
    assert for_want_of_neighbours(verdict, copy).evidence == verdict.evidence + remedy
    for other in (replace(verdict, kind=OutcomeKind.CRASH), replace(verdict, evidence="no")):
        assert for_want_of_neighbours(other, copy) == other


def test_memory_is_not_said_to_want_samples() -> None:
    verdict = TrialVerdict(kind=OutcomeKind.HOST_OUT_OF_MEMORY, evidence="full")
    assert for_want_of_samples(verdict, Recipe(micro_batch_size=4), 3) == verdict


def test_a_text_that_may_mean_memory_does_so_only_where_memory_was_full() -> None:
    line = raised("RuntimeError", "Exception", text="cuDNN error: CUDNN_STATUS_INTERNAL_ERROR")
    assert judged(line).kind is OutcomeKind.KERNEL_FAILURE
    assert judged(line, full=True).kind is OutcomeKind.DEVICE_OUT_OF_MEMORY
    on_a_full_card = line.replace("}]", '}], "is_card_full": true')
    assert judged(on_a_full_card).kind is OutcomeKind.DEVICE_OUT_OF_MEMORY


def test_memory_in_one_process_outweighs_what_its_launcher_raises_about_it() -> None:
    launcher = raised("ChildFailedError", "Exception", text="local_rank: 0 failed")
    assert (
        judged(launcher, raised("OutOfMemoryError", "RuntimeError", text=OOM)).kind is OutcomeKind.DEVICE_OUT_OF_MEMORY
    )


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        (f"{TRACEBACK}torch.OutOfMemoryError: {OOM}\nlauncher: exit 1\n", OutcomeKind.DEVICE_OUT_OF_MEMORY),
        (f"{TRACEBACK}KeyError: 'bs'\n", OutcomeKind.USER_ERROR),
        ("train.py: error: unrecognized arguments: --bs 4\n", OutcomeKind.USER_ERROR),
    ],
)
def test_where_no_exception_was_seen_the_output_tells(log: str, kind: OutcomeKind) -> None:
    assert judged(STARTED, code=1, log=log).kind is kind


def test_the_last_line_of_the_output_is_the_evidence_where_there_is_no_better() -> None:
    verdict = judged(code=2, log="usage: train.py\ntrain.py: error: unrecognized arguments: --bs 4\n\n")
    assert verdict.evidence == "the command ended with exit status 2: train.py: error: unrecognized arguments: --bs 4"


@pytest.mark.parametrize("code", [-9, 137])
def test_a_kill_is_for_memory_where_the_kernel_says_so_or_the_budget_was_near(code: int) -> None:
    assert judged(code=code).kind is OutcomeKind.CRASH
    assert judged(code=code, killed=True).kind is OutcomeKind.HOST_OUT_OF_MEMORY
    assert judged(code=code, full=True).kind is OutcomeKind.HOST_OUT_OF_MEMORY


@pytest.mark.parametrize("code", [-11, 139])
def test_a_segmentation_fault_is_a_crash_of_whatever_size(code: int) -> None:
    verdict = judged(code=code, full=True)
    assert (verdict.kind, verdict.evidence) == (OutcomeKind.CRASH, "the command was ended by SIGSEGV")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((), "no Python process in it could be observed"),
        ((STARTED,), "none of its Python processes imported torch.optim"),
        ((STARTED, IMPORTED), "made no torch optimizer and fewer than five backward passes; "),
        ((STARTED, IMPORTED, BUILT), "took no optimizer step"),
        ((STARTED, IMPORTED, BUILT, FAILED), "took no optimizer step that could be seen"),
    ],
)
def test_a_command_that_never_steps_says_how_far_it_came(lines: tuple[str, ...], said: str) -> None:
    verdict = judged(*lines, code=0)
    assert verdict.kind is OutcomeKind.NEVER_STEPPED
    assert said in verdict.evidence


def test_a_command_that_takes_a_single_step_has_stepped_and_too_few_times() -> None:
    verdict = judged(STARTED, IMPORTED, BUILT, step(1), code=0)
    assert verdict.kind is OutcomeKind.TOO_FEW_STEPS
    assert verdict.evidence == "the command ended by itself, and took no more than 1 optimizer step; 2 are needed"


def test_a_command_that_never_steps_is_quoted_with_what_it_printed_last() -> None:
    verdict = judged(STARTED, IMPORTED, code=0, log="starting\nUnable to find 2 GPUs. Exiting.\n\n")
    assert verdict.evidence.endswith("; it printed last: Unable to find 2 GPUs. Exiting.")
    assert "printed" not in judged(STARTED, IMPORTED, code=0, log="\n").evidence


def test_two_steps_are_enough_to_leave_the_judgement_to_the_readings() -> None:
    assert judged(STARTED, BUILT, step(1), step(2), code=0) is None


def test_a_scaler_that_skips_every_step_is_a_loss_that_is_not_finite() -> None:
    assert judged(BUILT, '{"event": "skipped", "pid": 7, "count": 8}', code=0).kind is OutcomeKind.NON_FINITE_LOSS


ELASTIC_LOG = (
    "E1124 09:36:24.205000 17996 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)\n"
    "Traceback (most recent call last):\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n====\ntrain.py FAILED\n"
)


def torchrun_failed(status: int) -> str:
    text = f"\n====\ntrain.py FAILED\nRoot Cause (first observed failure):\n[0]:\n  exitcode  : {status} (pid: 8)\n===="
    return raised("ChildFailedError", "Exception", text=text, place="/usr/bin/torchrun:6")


def accelerate_failed(how: str) -> str:
    text = f"Command '['python', 'train.py']' {how}"
    return raised("CalledProcessError", "SubprocessError", "Exception", text=text, place="/usr/bin/accelerate:6")


@pytest.mark.parametrize("launcher", [torchrun_failed(1), accelerate_failed("returned non-zero exit status 1.")])
def test_of_a_launched_script_that_exits_the_scripts_own_last_line_is_the_evidence(launcher: str) -> None:
    verdict = judged(launcher, log=f"epoch 1\nthe folder /data is empty\n{ELASTIC_LOG}")
    assert verdict.kind is OutcomeKind.USER_ERROR
    assert verdict.evidence == "the command ended with exit status 1: the folder /data is empty"


@pytest.mark.parametrize("launcher", [torchrun_failed(-9), accelerate_failed("died with <Signals.SIGKILL: 9>.")])
def test_a_signal_to_a_launched_script_is_judged_as_one_to_the_command(launcher: str) -> None:
    assert judged(launcher).kind is OutcomeKind.CRASH
    assert judged(launcher, killed=True).kind is OutcomeKind.HOST_OUT_OF_MEMORY
    assert judged(launcher, full=True).kind is OutcomeKind.HOST_OUT_OF_MEMORY


def test_what_a_launched_script_raised_outweighs_its_launchers_report() -> None:
    verdict = judged(torchrun_failed(1), raised("KeyError", "Exception", text="'image'"))
    assert verdict.evidence == "KeyError: 'image' (train.py:9)"


def test_a_program_that_the_users_code_runs_in_vain_is_the_users_error() -> None:
    text = "Command '['nvcc']' returned non-zero exit status 1."
    verdict = judged(raised("CalledProcessError", "Exception", text=text))
    assert verdict.evidence == f"CalledProcessError: {text} (train.py:9)"


def test_the_error_of_a_parser_of_arguments_is_told_whole() -> None:
    log = "usage: cli.py [-h]\nerror: Parser key 'data':\n  Errors:\n    - Option 'batchsize' is not accepted\n"
    said = "error: Parser key 'data': Errors: - Option 'batchsize' is not accepted"
    assert judged(code=2, log=log).evidence == f"the command ended with exit status 2: {said}"
