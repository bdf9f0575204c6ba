"""What is asked of memplan and what it answers: the request, the plan, and the ways to take a plan over."""

from __future__ import annotations

from memplan.plans.plan import Plan, evidence_of
from memplan.plans.request import PlanRequest

__all__ = ["Plan", "PlanRequest", "evidence_of"]
