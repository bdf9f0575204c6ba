"""Config ecosystems: read a user's knobs, locate their values, write a patch."""

from __future__ import annotations

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
