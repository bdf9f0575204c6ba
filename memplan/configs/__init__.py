"""Config ecosystems: read a user's knobs, locate their values, write a patch.

Names are loaded on first use: the child processes that import one module of this package start without the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memplan.configs.reading import read_config
    from memplan.configs.replicas import for_replicas, holds_batch_of_all, reference_world_size
    from memplan.configs.user_config import (
        Knob,
        KnobName,
        MemplanOptions,
        OriginalRecipe,
        PatchStyle,
        RecipeChange,
        UserConfig,
    )
    from memplan.configs.writing.applying import apply_patch, undo_patch
    from memplan.configs.writing.patching import expressible, plan_patch

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
    "for_replicas",
    "holds_batch_of_all",
    "plan_patch",
    "read_config",
    "reference_world_size",
    "undo_patch",
]
_HOMES = {
    "apply_patch": "writing.applying",
    "expressible": "writing.patching",
    "for_replicas": "replicas",
    "holds_batch_of_all": "replicas",
    "plan_patch": "writing.patching",
    "read_config": "reading",
    "reference_world_size": "replicas",
    "undo_patch": "writing.applying",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"memplan.configs.{_HOMES.get(name, 'user_config')}"), name)
