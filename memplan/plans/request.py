"""What is wanted of the device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsFloat

from memplan.configs.user_config import PatchStyle
from memplan.errors import UsageError
from memplan.recipe import Precision, counted
from memplan.recommend.scaling import TRUSTED_RATIO, LearningRateRule
from memplan.run_names import DEFAULT_STORE

_LARGEST_MICRO_BATCH = 4096
_SHARES = {"max-util": "max_utilisation", "min-util": "min_utilisation"}
_COUNTS = {"global-batch": "global_batch_size", "max-batch": "micro_batch_cap", "world-size": "world_size"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What is wanted of the device.

    Args:
        device: card name, size, ``cuda:0``, ``cpu`` or ``auto``.
        budget_bytes: what the step may use; None for all the device offers.
        max_utilisation: upper edge of the band.
        min_utilisation: lower edge of the band.
        precisions: number formats to compare; None for those that the device has and the config can express.
        global_batch_size: samples per optimizer step to hold by accumulation; None leaves it free.
        learning_rate_rule: how the learning rate follows the global batch; None keeps it where a global batch is held,
            and else scales linearly.
        world_size: data-parallel replicas; None for as many as the config is written for.
        micro_batch_cap: largest micro-batch that is considered; None decides by the original one.
        patch_style: how a change is written; None for the ecosystem's default.
        store: folder of the trial journal.
        change_loader: whether the patch may change the settings of the data loader.
        trace_limit_s: how long one trace may take; None for the estimator's own limit. It decides no answer.
        trial_limit_s: how long one trial may take to its first step, and for its steps; None for the probe's own
            limits. Nor does it decide one.

    Raises:
        UsageError: a value is out of range.
    """

    device: str = "auto"
    budget_bytes: int | None = None
    max_utilisation: float = 0.8
    min_utilisation: float = 0.6
    precisions: tuple[Precision, ...] | None = None
    global_batch_size: int | None = None
    learning_rate_rule: LearningRateRule | None = None
    world_size: int | None = None
    micro_batch_cap: int | None = None
    patch_style: PatchStyle | None = None
    store: Path = DEFAULT_STORE
    change_loader: bool = False
    trace_limit_s: float | None = None
    trial_limit_s: float | None = None

    def __post_init__(self) -> None:
        if self.budget_bytes is not None and self.budget_bytes < 1:
            raise UsageError(f"budget {self.budget_bytes} must be at least 1 byte")
        for option, name in _SHARES.items():
            share = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, SupportsFloat):
                raise UsageError(f"{option} {share!r} must be a number", hint="write a share such as 0.8")
            object.__setattr__(self, name, float(share))
        for option, name in _COUNTS.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, counted(f"{option} ", value))

    @property
    def rate_rule(self) -> LearningRateRule:
        """How the learning rate follows the global batch: as asked for, else by what is held."""
        if self.learning_rate_rule is not None:
            return self.learning_rate_rule
        return LearningRateRule.LINEAR if self.global_batch_size is None else LearningRateRule.NONE

    def largest_micro_batch(self, original: int) -> int:
        """Return the largest micro-batch that is considered: as asked for, else 4096, or eight times the original."""
        return self.micro_batch_cap or max(_LARGEST_MICRO_BATCH, TRUSTED_RATIO * original)

    def facts(self) -> dict[str, Any]:
        """Return what decides the answer, as JSON-ready data; two requests with equal facts ask the same."""
        facts = {
            "device": self.device,
            "budget_bytes": self.budget_bytes,
            "max_utilisation": self.max_utilisation,
            "min_utilisation": self.min_utilisation,
            "precisions": None if self.precisions is None else [str(each) for each in self.precisions],
            "global_batch_size": self.global_batch_size,
            "micro_batch_cap": self.micro_batch_cap,
            "learning_rate_rule": str(self.rate_rule),
            "world_size": self.world_size,
            "change_loader": self.change_loader or None,
        }
        return {name: value for name, value in facts.items() if value is not None}
