"""Config ecosystems: read a user's knobs, locate their values, write a patch.

A change passes through these packages, each of which imports only from those before it:

``languages``: the text of one file, as data, and where in it a value is written; ``documents`` holds a file read so.
``evaluation``: the effective values of a config, with its bases, imports and interpolations.
``layout``: changed values as lines of a child config, or as command-line words.
``ecosystems``: for each kind of config the keys of its knobs, and what a change sets. They share ``knobs`` and
``knob_changes``; ``registry`` finds out which kind a config is.
``reading`` combines these into a ``UserConfig``, with ``companions`` and ``several_files`` where there is more than one
file; ``objects`` does so for a config in memory.
``writing``: the patch and its verification; ``packages`` loads it with the packages that programs load configs with.

Names are loaded on first use: child processes that import one module of this package start without the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memplan.configs.reading import read_config
    from memplan.configs.replicas import for_replicas, holds_batch_of_all, on_replicas, reference_world_size
    from memplan.configs.user_config import (
        Knob,
        KnobName,
        MemplanOptions,
        OriginalRecipe,
        PatchStyle,
        RecipeChange,
        UserConfig,
    )
    from memplan.configs.writing.applying import apply_patch, deliver_patch, undo_patch
    from memplan.configs.writing.patching import expressible, obstacle_on_cpu, plan_patch

__all__ = [
    "Knob",
    "KnobName",
    "MemplanOptions",
    "OriginalRecipe",
    "PatchStyle",
    "RecipeChange",
    "UserConfig",
    "apply_patch",
    "deliver_patch",
    "expressible",
    "for_replicas",
    "holds_batch_of_all",
    "obstacle_on_cpu",
    "on_replicas",
    "plan_patch",
    "read_config",
    "reference_world_size",
    "undo_patch",
]
_MODULES = {
    "apply_patch": "writing.applying",
    "deliver_patch": "writing.applying",
    "expressible": "writing.patching",
    "for_replicas": "replicas",
    "holds_batch_of_all": "replicas",
    "obstacle_on_cpu": "writing.patching",
    "on_replicas": "replicas",
    "plan_patch": "writing.patching",
    "read_config": "reading",
    "reference_world_size": "replicas",
    "undo_patch": "writing.applying",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"memplan.configs.{_MODULES.get(name, 'user_config')}"), name)
