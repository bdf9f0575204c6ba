"""What a caller can follow while memplan works: events, handed to a callback in the order they happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan.configs import UserConfig
    from memplan.devices.cards import DeviceSpec
    from memplan.plans import Plan
    from memplan.recipe import Recipe
    from memplan.recommend.band import Band
    from memplan.results import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStarted:
    """It is settled what is planned for which device, and nothing has run yet.

    Args:
        command: the training command that is run; None where a workload is.
        config: the config that is patched; None where there is none, or none that memplan can read.
        current: the recipe that is tried first.
        device: what is planned for.
        band: where the device peak shall land.
        notes: what the reader of the config remarked, one phrase each.
    """

    command: str | None
    config: UserConfig | None
    current: Recipe
    device: DeviceSpec
    band: Band
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A new part of the work begins, e.g. tracing; ``text`` says which in the present tense."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something the user should know while the work goes on."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A live trial begins."""

    number: int
    purpose: str
    recipe: Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAdvanced:
    """A live trial moved on: what it does now, and how many of its steps are done."""

    doing: str
    done_steps: int
    total_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """A live trial ended, or was found finished in the journal of an interrupted run; ``command`` runs it again."""

    trial: Trial
    was_resumed: bool
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEnded:
    """A plan was made, or found again."""

    plan: Plan


Event = PlanStarted | Stage | Notice | TrialStarted | TrialAdvanced | TrialEnded | PlanEnded
Observer = Callable[[Event], None]
