"""The log of a plan, which a program configures through Python's ``logging``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from memplan.progress import Notice, PlanEnded, PlanStarted, Stage, TrialEnded, TrialStarted
from memplan.report.facts import trial_row
from memplan.report.plan_heading import plan_heading
from memplan.report.trial_tables import trial_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from memplan.progress import Event

_LOGGER = logging.getLogger("memplan")


def log(event: Event) -> None:
    """Log an event to ``memplan``: stages and trials as information, what the user should know as a warning."""
    match event:
        case PlanStarted():
            _LOGGER.info(_one_text(plan_heading(event)))
        case Stage(text=text):
            _LOGGER.info(text)
        case Notice(text=text):
            _LOGGER.warning(text)
        case TrialStarted(number=number, purpose=purpose, recipe=recipe):
            _LOGGER.info("trial %d  %s  %s", number, purpose, recipe)
        case TrialEnded(trial=trial, was_resumed=was_resumed, command=command):
            _LOGGER.info(_one_text(trial_lines(trial_row(trial), was_resumed=was_resumed, command=command)))
        case PlanEnded(plan=plan):
            for note in plan.notes:
                _LOGGER.warning(note)
        case _:
            pass


def _one_text(lines: Sequence[Text]) -> str:
    return "\n".join(line.plain for line in lines)
