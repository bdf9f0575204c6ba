"""Where the ecosystems keep the settings of their data loaders. They are read to be remarked on, and never changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.configs.keys import get
from memplan.configs.user_config import KnobName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.configs.documents import Document
    from memplan.configs.ecosystem import KnobKeys

_TORCH = {
    KnobName.LOADER_WORKERS: "num_workers",
    KnobName.PIN_MEMORY: "pin_memory",
    KnobName.PREFETCH_FACTOR: "prefetch_factor",
    KnobName.PERSISTENT_WORKERS: "persistent_workers",
}
_SCRIPT = {**_TORCH, KnobName.PIN_MEMORY: "pin_mem"}
# ecosystem -> the names it uses, and what stands before them; the first that is there counts
_HOMES: Mapping[str, tuple[tuple[Mapping[KnobName, str], str], ...]] = {
    "huggingface": ((_TORCH, "dataloader_"),),
    "llama-factory": ((_TORCH, "dataloader_"),),
    "axolotl": ((_TORCH, "dataloader_"),),
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


def loader_keys(document: Document, *, format_name: str) -> KnobKeys:
    """Return the keys of the loader's settings that a config of an ecosystem sets."""
    found: dict[KnobName, tuple[str, ...]] = {}
    for names, prefix in _HOMES.get(format_name, ()):
        for name, own in names.items():
            if isinstance(get(document.values, f"{prefix}{own}"), int):
                found.setdefault(name, (f"{prefix}{own}",))
    return found
