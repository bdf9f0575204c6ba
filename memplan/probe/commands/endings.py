"""How a training command ended: with its steps taken, by an exception or exit status, or without any step. Pure."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.devices.cards import DeviceKind
from memplan.probe.commands.events import (
    ErrorRaised,
    HookFailed,
    OptimizerBuilt,
    OptimizersImported,
    ProcessStarted,
    RaisedError,
    StepEnded,
    StepsFinished,
    StepSkipped,
)
from memplan.probe.commands.launcher_reports import before_launcher, launched_status
from memplan.probe.commands.readings import first_bad_loss
from memplan.probe.failure_texts import LINE_LIMIT, is_kernel_text, memory_kind_of_text, one_line
from memplan.probe.judging import fitting, judge_memory, judge_signal
from memplan.probe.trials import TrialVerdict
from memplan.results import OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memplan.probe.commands.events import Event
    from memplan.probe.trials import TrialRequest
    from memplan.recipe import Recipe
    from memplan.results import Measurement

ENDED_BY_ITSELF = "the command ended by itself"
_FEWEST_MEASURED_STEPS = 2  # the first one makes the optimizer's state, so its peak says too little
_ABOUT_TRIALS = {
    "EOFError": "trials have no standard input to read from",
    "FileExistsError": "trials end without exit handlers, so that a lock file of the one before remains",
}
_FOR_WANT_OF_SAMPLES = (OutcomeKind.USER_ERROR, OutcomeKind.TOO_FEW_STEPS, OutcomeKind.NEVER_STEPPED)
_SHELL_SIGNAL_BASE = 128
_PARSERS_ERROR = re.compile(r"^(?:\S+: )?error: ")  # of argparse and jsonargparse
_LAST_TRACEBACK_LINE = re.compile(
    r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\w*)(?:: (?P<text>.*))?$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnding:
    """What was seen of a command that has ended.

    Args:
        events: what its processes reported.
        return_code: of the shell; negative is the signal that ended it.
        log_tail: the end of what it printed.
        is_memory_full: whether it was seen near its budget.
        was_killed_by_kernel: whether the kernel killed a process for lack of memory meanwhile.
    """

    events: Sequence[Event]
    return_code: int
    log_tail: str
    is_memory_full: bool
    was_killed_by_kernel: bool


def judge_ending(ending: CommandEnding) -> TrialVerdict | None:
    """Say why a command failed; None where it ended by itself after enough steps, which its readings judge."""
    raised = [event for event in ending.events if isinstance(event, ErrorRaised)]
    launched = [status for event in raised if (status := launched_status(event)) is not None]
    own = [event for event in raised if launched_status(event) is None]
    if ending.return_code and own:
        verdicts = [_of_error(each, ending.is_memory_full or each.is_card_full) for each in own]
        return next((each for each in verdicts if each.kind.is_too_large), verdicts[0])
    if ending.return_code and launched:
        return _of_status(replace(ending, return_code=launched[0], log_tail=before_launcher(ending.log_tail)))
    if ending.return_code:
        return _of_status(ending)
    if steps_taken(ending.events) >= _FEWEST_MEASURED_STEPS:
        return None
    if any(isinstance(event, StepSkipped) for event in ending.events):
        return TrialVerdict(kind=OutcomeKind.NON_FINITE_LOSS, evidence="the gradient scaler skipped every step")
    verdict = without_enough_steps(ending.events)
    return replace(verdict, evidence=f"{ENDED_BY_ITSELF}, and {verdict.evidence}{_last_words(ending)}")


def judge_place(events: Sequence[Event], request: TrialRequest) -> TrialVerdict | None:
    """Report a command that was tried on a card and took its steps without one."""
    steps = [event for event in events if isinstance(event, StepEnded)]
    if request.device.kind is DeviceKind.CPU or not steps or any(step.card for step in steps):
        return None
    evidence = f"the steps ran on the CPU and not on {request.device.name}: does the script's PyTorch see the card?"
    return TrialVerdict(kind=OutcomeKind.USER_ERROR, evidence=evidence)


def judge_steps(measurement: Measurement, events: Sequence[Event], request: TrialRequest) -> TrialVerdict:
    """Judge a command that took its steps; only ``FITS`` is a success."""
    too_large = judge_memory(measurement, request)
    if too_large is not None:
        return too_large
    if (step := first_bad_loss(events)) is not None:
        return TrialVerdict(kind=OutcomeKind.NON_FINITE_LOSS, evidence=f"the loss of step {step} was not finite")
    if any(isinstance(event, StepsFinished) and not event.is_finite for event in events):
        evidence = f"parameters were not finite after {steps_taken(events)} steps"
        return TrialVerdict(kind=OutcomeKind.NON_FINITE_LOSS, evidence=evidence)
    return fitting(steps_taken(events), measurement, request)


def for_want_of_samples(verdict: TrialVerdict, recipe: Recipe, available: int) -> TrialVerdict:
    """Say of a failure that the data do not fill a batch, which scripts that drop the last one seldom say."""
    if verdict.kind not in _FOR_WANT_OF_SAMPLES:
        return verdict
    few = f"the data loader has {available} samples, too few for a batch of {recipe.micro_batch_size}"
    return replace(verdict, evidence=f"{few}: {verdict.evidence}")


def for_want_of_neighbours(verdict: TrialVerdict, copy: Path) -> TrialVerdict:
    """Say of a failure that names the folder of a trial's copy of a config that nothing else lies there."""
    if verdict.kind is not OutcomeKind.USER_ERROR or str(copy.parent) not in verdict.evidence:
        return verdict
    remedy = f"only the trial's copy of {copy.name} lies there, so that files are best named from the working folder"
    return replace(verdict, evidence=f"{verdict.evidence}; {remedy}")


def steps_taken(events: Sequence[Event]) -> int:
    """Optimizer steps of the process that took most."""
    return max((event.step for event in events if isinstance(event, StepEnded)), default=0)


def without_enough_steps(events: Sequence[Event]) -> TrialVerdict:
    """Judge a command that took fewer optimizer steps than are needed, by how far it came on its way there."""
    kind = OutcomeKind.TOO_FEW_STEPS if steps_taken(events) else OutcomeKind.NEVER_STEPPED
    return TrialVerdict(kind=kind, evidence=_why_no_steps(events))


def _why_no_steps(events: Sequence[Event]) -> str:
    if steps_taken(events):
        return f"took no more than {steps_taken(events)} optimizer step; {_FEWEST_MEASURED_STEPS} are needed"
    if not any(isinstance(event, ProcessStarted) for event in events):
        return (
            "no Python process in it could be observed; is PYTHONPATH kept (PYTHONPATH=x:$PYTHONPATH, no python -I or "
            "-E, no env -i, no container, no sudo)?"
        )
    if not any(isinstance(event, OptimizersImported) for event in events):
        return "none of its Python processes imported torch.optim"
    if not any(isinstance(event, OptimizerBuilt) for event in events):
        return (
            "made no torch optimizer and fewer than five backward passes; where training makes neither, describe the "
            "step by a workload"
        )
    if any(isinstance(event, HookFailed) for event in events):
        return "took no optimizer step that could be seen"
    return "took no optimizer step"


def _last_words(ending: CommandEnding) -> str:
    """Quote what a command printed last that ended well before its first step: scripts say there what they lack."""
    if steps_taken(ending.events) or not ending.log_tail.strip():
        return ""
    return f"; it printed last: {_said_last(ending.log_tail)[:LINE_LIMIT]}"


def _of_error(event: ErrorRaised, is_memory_full: bool) -> TrialVerdict:
    for each in event.chain:
        kind = _memory_kind(each, is_memory_full)
        if kind is not None:
            return TrialVerdict(kind=kind, evidence=one_line(each.types[0], each.text))
    error = event.chain[0]
    if "AcceleratorError" in error.types or ("RuntimeError" in error.types and is_kernel_text(error.text)):
        return TrialVerdict(kind=OutcomeKind.KERNEL_FAILURE, evidence=one_line(error.types[0], error.text))
    place = f" ({event.place})" if event.place else ""
    why = next((f"; {each}" for kind, each in _ABOUT_TRIALS.items() if kind in error.types), "")
    return TrialVerdict(kind=OutcomeKind.USER_ERROR, evidence=f"{one_line(error.types[0], error.text)}{place}{why}")


def _memory_kind(error: RaisedError, is_memory_full: bool) -> OutcomeKind | None:
    if "OutOfMemoryError" in error.types:
        return OutcomeKind.DEVICE_OUT_OF_MEMORY
    if "MemoryError" in error.types or ("OSError" in error.types and "Cannot allocate memory" in error.text):
        return OutcomeKind.HOST_OUT_OF_MEMORY
    if "Exception" not in error.types and "RuntimeError" not in error.types:
        return None
    return memory_kind_of_text(error.text, memory_is_full=is_memory_full)


def _of_status(ending: CommandEnding) -> TrialVerdict:
    """Judge a failure that no exception hook saw: by its signal, else by what was printed last."""
    number = _signal_of(ending.return_code)
    if number is not None:
        return judge_signal(
            number,
            of="the command",
            is_near_budget=ending.is_memory_full,
            killed_by_kernel=ending.was_killed_by_kernel,
        )
    printed = _printed_error(ending.log_tail)
    if printed is not None:
        return _of_error(ErrorRaised(pid=0, chain=(printed,), place=None), ending.is_memory_full)
    evidence = f"the command ended with exit status {ending.return_code}: {_said_last(ending.log_tail)[:LINE_LIMIT]}"
    return TrialVerdict(kind=OutcomeKind.USER_ERROR, evidence=evidence)


def _said_last(log_tail: str) -> str:
    """The last line, or all from where a parser of arguments tells its error, which may take several."""
    lines = [line.strip() for line in log_tail.splitlines() if line.strip()]
    parsers = [index for index, line in enumerate(lines) if _PARSERS_ERROR.match(line)]
    told = lines[parsers[-1] :] if parsers else lines[-1:]
    return " ".join(told) or "nothing was printed"


def _signal_of(return_code: int) -> signal.Signals | None:
    """The signal that ended the shell, or that it says ended its command."""
    number = -return_code if return_code < 0 else return_code - _SHELL_SIGNAL_BASE
    return signal.Signals(number) if number in {each.value for each in signal.Signals} else None


def _printed_error(log_tail: str) -> RaisedError | None:
    """The exception that the last traceback in the output ends with; of subprocesses too, whose launchers add more."""
    found = [match for line in log_tail.splitlines() if (match := _LAST_TRACEBACK_LINE.match(line.strip()))]
    memory = [each for each in found if memory_kind_of_text(each[0], memory_is_full=False) is not None]
    if not found or "Traceback" not in log_tail:
        return None
    match = (memory or found)[-1]
    name = match["type"].rpartition(".")[2]
    return RaisedError(types=(name, "RuntimeError") if memory else (name,), text=match["text"] or "")
