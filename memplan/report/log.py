"""The log of a plan in the making, which a program follows by its own settings of Python's ``logging``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from memplan.progress import Notice, PlanStarted, Stage, TrialEnded, TrialStarted
from memplan.report.console import plan_heading, trial_line
from memplan.report.facts import trial_row
from memplan.report.wording import recipe_text

if TYPE_CHECKING:
    from memplan.progress import Event

_LOGGER = logging.getLogger("memplan")


def log(event: Event) -> None:
    """Log an event to ``memplan``: stages and trials as information, what the user should know as a warning."""
    match event:
        case PlanStarted():
            _LOGGER.info(plan_heading(event).plain.rstrip())
        case Stage(text=text):
            _LOGGER.info(text)
        case Notice(text=text):
            _LOGGER.warning(text)
        case TrialStarted(number=number, purpose=purpose, recipe=recipe):
            _LOGGER.info("trial %d  %s  %s", number, purpose, recipe_text(recipe))
        case TrialEnded(trial=trial, was_resumed=was_resumed, command=command):
            _LOGGER.info(trial_line(trial_row(trial), was_resumed=was_resumed, command=command).plain)
        case _:
            pass
