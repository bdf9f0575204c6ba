"""The config ecosystems memplan knows, in the order in which they are recognised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.configs.ecosystems.accelerate import Accelerate
from memplan.configs.ecosystems.axolotl import Axolotl
from memplan.configs.ecosystems.deepspeed import DeepSpeed
from memplan.configs.ecosystems.detectron2 import Detectron2
from memplan.configs.ecosystems.detectron2_lazy import Detectron2Lazy
from memplan.configs.ecosystems.huggingface import HuggingFace
from memplan.configs.ecosystems.lightning_cli import LightningCLI
from memplan.configs.ecosystems.lightning_hydra import LightningHydra
from memplan.configs.ecosystems.llama_factory import LlamaFactory
from memplan.configs.ecosystems.mmengine import MMEngine
from memplan.configs.ecosystems.openmmlab_0x import OpenMMLab0
from memplan.configs.ecosystems.plain import Plain
from memplan.configs.ecosystems.script_flags import LaunchScript, ScriptArguments
from memplan.configs.ecosystems.swin import Swin
from memplan.configs.ecosystems.timm import Timm
from memplan.configs.ecosystems.torchtitan import TorchTitan
from memplan.configs.ecosystems.torchtune import TorchTune
from memplan.configs.ecosystems.ultralytics import Ultralytics
from memplan.configs.languages.registry import LANGUAGES
from memplan.errors import ConfigError, hint_on_names

if TYPE_CHECKING:
    from memplan.configs.documents import Document
    from memplan.configs.ecosystems.ecosystem import Ecosystem

ECOSYSTEMS: tuple[Ecosystem, ...] = (
    MMEngine(),
    OpenMMLab0(),
    LlamaFactory(),
    Axolotl(),
    HuggingFace(),
    LightningCLI(),
    LightningHydra(),
    Detectron2(),
    Detectron2Lazy(),
    DeepSpeed(),
    Accelerate(),
    Ultralytics(),
    Timm(),
    Swin(),
    TorchTitan(),
    TorchTune(),
    LaunchScript(),
    ScriptArguments(),
    *(Plain(each) for each in LANGUAGES),
)


def ecosystem_of(document: Document, *, format_name: str | None) -> Ecosystem:
    """Return the named ecosystem, or the first that recognises the config.

    Raises:
        ConfigError: there is none of that name.
    """
    if format_name is None:
        return next(each for each in ECOSYSTEMS if each.recognises(document))
    return ecosystem_named(format_name)


def ecosystem_named(name: str) -> Ecosystem:
    """Return an ecosystem by its name.

    Raises:
        ConfigError: there is none of that name.
    """
    for ecosystem in ECOSYSTEMS:
        if ecosystem.name == name:
            return ecosystem
    hint = hint_on_names(name, (each.name for each in ECOSYSTEMS))
    raise ConfigError(f"there is no config format {name!r}", hint=hint)
