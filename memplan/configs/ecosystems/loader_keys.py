"""Where the ecosystems keep the settings of their data loaders, which change only on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.configs.keys import get
from memplan.configs.knob_changes import assigned
from memplan.configs.user_config import KnobName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.configs.assignments import Assignment, KnobKeys
    from memplan.configs.documents import Document
    from memplan.configs.user_config import RecipeChange, UserConfig

_TORCH = {
    KnobName.LOADER_WORKERS: "num_workers",
    KnobName.PIN_MEMORY: "pin_memory",
    KnobName.PREFETCH_FACTOR: "prefetch_factor",
    KnobName.PERSISTENT_WORKERS: "persistent_workers",
}
LOADER_KNOBS = tuple(_TORCH)
_SCRIPT = {**_TORCH, KnobName.PIN_MEMORY: "pin_mem"}
# ecosystem -> the names it uses, and what stands before them; the first that is there counts
_KEYS: Mapping[str, tuple[tuple[Mapping[KnobName, str], str], ...]] = {
    **dict.fromkeys(("huggingface", "llama-factory", "axolotl"), ((_TORCH, "dataloader_"),)),
    "mmengine": ((_TORCH, "train_dataloader."),),
    "openmmlab-0.x": (({KnobName.LOADER_WORKERS: "workers_per_gpu"}, "data."), (_TORCH, "data.train_dataloader.")),
    "lightning-hydra": tuple((_TORCH, f"{each}.") for each in ("data", "datamodule", "dataloader", "data.datamodule")),
    "lightning-cli": ((_TORCH, "data.init_args."), (_TORCH, "data.")),
    "detectron2": (({KnobName.LOADER_WORKERS: "NUM_WORKERS"}, "DATALOADER."),),
    "detectron2-lazy": ((_TORCH, "dataloader.train."),),
    "timm": (({KnobName.LOADER_WORKERS: "workers", KnobName.PIN_MEMORY: "pin_mem"}, ""),),
    "ultralytics": (({KnobName.LOADER_WORKERS: "workers"}, ""),),
    "launch-script": ((_SCRIPT, ""), ({KnobName.LOADER_WORKERS: "workers", KnobName.PIN_MEMORY: "pin_memory"}, "")),
    "argparse-script": ((_SCRIPT, ""), ({KnobName.LOADER_WORKERS: "workers", KnobName.PIN_MEMORY: "pin_memory"}, "")),
}

# ecosystem -> keys that can be added, where torch's own default of no holds without them
_ADDABLE: Mapping[str, Mapping[KnobName, str]] = {
    "mmengine": {
        KnobName.PIN_MEMORY: "train_dataloader.pin_memory",
        KnobName.PERSISTENT_WORKERS: "train_dataloader.persistent_workers",
    },
    "huggingface": {KnobName.PERSISTENT_WORKERS: "dataloader_persistent_workers"},  # transformers 4.36 and later
    "llama-factory": {KnobName.PERSISTENT_WORKERS: "dataloader_persistent_workers"},
}


def loader_keys(document: Document, *, format_name: str) -> KnobKeys:
    """Return the keys of the loader's settings that a config of an ecosystem sets."""
    found: dict[KnobName, tuple[str, ...]] = {}
    for names, prefix in _KEYS.get(format_name, ()):
        for name, own in names.items():
            if isinstance(get(document.values, f"{prefix}{own}"), int):
                found.setdefault(name, (f"{prefix}{own}",))
    return found


def loader_key(config: UserConfig, name: KnobName) -> str | None:
    """Return the key of a loader setting that a config has or can be given; None where there is none."""
    knob = config.knob(name)
    return _ADDABLE.get(config.format_name, {}).get(name) if knob is None else knob.key


def loader_assignments(config: UserConfig, change: RecipeChange) -> list[Assignment]:
    """Return the settings of the loader that a change makes; one without a key is left out."""
    keys = {name: loader_key(config, name) for name in change.loader}
    return [assigned(change, name, key, change.loader[name]) for name, key in keys.items() if key is not None]
