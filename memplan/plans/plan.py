"""The plan: what memplan recommends, on what evidence, and how a caller takes it over."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from memplan.patches import ConfigPatch
from memplan.plans.request import PlanRequest
from memplan.recipe import Recipe
from memplan.results import Estimate, PrecisionVerdict, Trial, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The recommended recipe, the evidence for it and the patch.

    Args:
        run_id: under which the run is stored.
        workload_name: what is trained.
        device_name: what the plan is for.
        device_total_bytes: the budget the utilisation refers to.
        min_utilisation: lower edge of the band.
        max_utilisation: upper edge of the band.
        current: the recipe in the user's config.
        recipe: the recommended recipe, learning rate included.
        chosen: the trial of exactly the recommended recipe; None where the device is not present and the recipe is
            recommended by its estimate alone.
        estimate: prediction for the recommended recipe on the device the plan is for; None where it cannot be traced.
        trials: every live run, in order.
        precisions: one verdict for each precision that was compared.
        reasons: why this recipe, one sentence each.
        config_patch: change to the user's config; None where there is no file or nothing to change.
        notes: warnings and limits, one sentence each.
        request: what was asked for.
    """

    run_id: str
    workload_name: str
    device_name: str
    device_total_bytes: int
    min_utilisation: float
    max_utilisation: float
    current: Recipe
    recipe: Recipe
    chosen: Trial | None
    estimate: Estimate | None
    trials: tuple[Trial, ...]
    precisions: tuple[PrecisionVerdict, ...]
    reasons: tuple[str, ...]
    config_patch: ConfigPatch | None
    notes: tuple[str, ...] = ()
    request: PlanRequest = field(default_factory=PlanRequest)

    @property
    def changes_anything(self) -> bool:
        """Whether the recommended recipe differs from the one in the config."""
        return self.recipe != self.current

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-ready data."""
        return {each.name: plain(getattr(self, each.name)) for each in fields(self)}
