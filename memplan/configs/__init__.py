"""Config ecosystems: read a user's knobs, locate their values, write a patch.

Names are loaded on first use: the child processes that import one module of this package start without the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memplan.configs.patching import apply_patch, expressible, plan_patch
    from memplan.configs.reading import read_config
    from memplan.configs.user_config import (
        Knob,
        KnobName,
        MemplanOptions,
        OriginalRecipe,
        PatchStyle,
        RecipeChange,
        UserConfig,
    )

__all__ = [
    "Knob",
    "KnobName",
    "MemplanOptions",
    "OriginalRecipe",
    "PatchStyle",
    "RecipeChange",
    "UserConfig",
    "apply_patch",
    "expressible",
    "plan_patch",
    "read_config",
]
_PATCHING = ("apply_patch", "expressible", "plan_patch")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "patching" if name in _PATCHING else "reading" if name == "read_config" else "user_config"
    return getattr(importlib.import_module(f"memplan.configs.{home}"), name)
