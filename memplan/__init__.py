"""Plan the GPU memory of a PyTorch training step before the run.

The public names are loaded on first use, so that importing memplan costs nothing and never imports torch.
"""

from __future__ import annotations

import importlib
import random
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from memplan.version import __version__

if TYPE_CHECKING:
    from memplan.api import estimate, plan, probe
    from memplan.errors import (
        ConfigError,
        DeviceError,
        MemplanError,
        NothingFitsError,
        TraceError,
        UsageError,
        WorkloadError,
    )
    from memplan.integrations.plain import executable_batch_size
    from memplan.plans import Plan
    from memplan.recipe import Precision, Recipe
    from memplan.results import Estimate, Outcome, OutcomeKind, ProbeResult, Trial
    from memplan.watching import PlanWarning, watch
    from memplan.workload import Workload
    from memplan.worst_case import worst_batch

_MODULES = {
    "ConfigError": "memplan.errors",
    "DeviceError": "memplan.errors",
    "Estimate": "memplan.results",
    "MemplanError": "memplan.errors",
    "NothingFitsError": "memplan.errors",
    "Outcome": "memplan.results",
    "OutcomeKind": "memplan.results",
    "Plan": "memplan.plans",
    "PlanWarning": "memplan.watching",
    "Precision": "memplan.recipe",
    "ProbeResult": "memplan.results",
    "Recipe": "memplan.recipe",
    "TraceError": "memplan.errors",
    "Trial": "memplan.results",
    "UsageError": "memplan.errors",
    "Workload": "memplan.workload",
    "WorkloadError": "memplan.errors",
    "estimate": "memplan.api",
    "executable_batch_size": "memplan.integrations.plain",
    "plan": "memplan.api",
    "probe": "memplan.api",
    "watch": "memplan.watching",
    "worst_batch": "memplan.worst_case",
}

__all__ = [
    "ConfigError",
    "DeviceError",
    "Estimate",
    "MemplanError",
    "NothingFitsError",
    "Outcome",
    "OutcomeKind",
    "Plan",
    "PlanWarning",
    "Precision",
    "ProbeResult",
    "Recipe",
    "TraceError",
    "Trial",
    "UsageError",
    "Workload",
    "WorkloadError",
    "__version__",
    "estimate",
    "executable_batch_size",
    "plan",
    "probe",
    "watch",
    "worst_batch",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'memplan' has no attribute {name!r}")
    state = random.getstate()  # rich draws a number when it is imported, which is not to change the caller's next one
    try:
        return getattr(importlib.import_module(_MODULES[name]), name)
    finally:
        random.setstate(state)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps the public names: importing the package ``memplan.probe`` would otherwise hide the function."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
