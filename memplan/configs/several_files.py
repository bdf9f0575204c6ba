"""Configs made of several files that the user names: overlays, or companions.

LightningCLI takes ``--config`` more than once: mappings merge, and of single values and lists the later file's win
(jsonargparse 4). Only its types tell which mapping is one ``dict`` argument, of which the later file's wins whole, and
which ``init_args`` another class keeps: here all are merged. Files after a Hydra config with a defaults list are
choices of its groups. A DeepSpeed or accelerate file accompanies training arguments that need not name it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.configs.companions import Companion
from memplan.configs.documents import read_source
from memplan.configs.ecosystems.accelerate import Accelerate
from memplan.configs.ecosystems.deepspeed import DeepSpeed
from memplan.configs.ecosystems.lightning_cli import LightningCLI
from memplan.configs.ecosystems.registry import ecosystem_of
from memplan.configs.evaluation.hydra_defaults import primary_values
from memplan.configs.evaluation.loading import load_document
from memplan.configs.languages.registry import YAML, language_of
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memplan.configs.documents import Document

_COMPANIONS = (DeepSpeed.name, Accelerate.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFiles:
    """The files a user named, loaded.

    Args:
        config: the config that they make up.
        beside: files that must agree with it and are patched together with it.
    """

    config: Document
    beside: tuple[Companion, ...] = ()


def load_named(paths: Sequence[Path], *, format_name: str | None) -> NamedFiles:
    """Load the files a user named, in the order of the training command.

    Args:
        paths: at least one file.
        format_name: ecosystem of the config; None recognises it by its content.

    Raises:
        ConfigError: one of them cannot be read, or they do not make up one config.
    """
    if len(paths) == 1:
        return NamedFiles(config=load_document(paths[0]))
    if _is_tree(paths):
        return NamedFiles(config=load_document(paths[-1], laid_over=paths[:-1]))
    files = [load_document(each) for each in paths]
    named = [Companion(document=each, format_name=ecosystem_of(each, format_name=None).name) for each in files]
    beside = tuple(each for each in named if each.format_name in _COMPANIONS)
    layers = [each.document for each in named if each not in beside] or files
    config = _laid_over(layers, format_name) if len(layers) > 1 else layers[0]
    own = ecosystem_of(config, format_name=format_name)
    if beside and not own.companion_names(config):
        what = f"{beside[0].format_name} files do not go with {own.name} configs"
        raise ConfigError(what, where=str(beside[0].document.path), hint=f"name {config.path.name} alone")
    return NamedFiles(config=config, beside=beside)


def _is_tree(paths: Sequence[Path]) -> bool:
    """Whether the first file is a Hydra config with a defaults list, of whose groups the others may be."""
    return all(language_of(each) is YAML for each in paths) and primary_values(read_source(paths[0])) is not None


def _laid_over(layers: Sequence[Document], format_name: str | None) -> Document:
    *below, last = layers
    other = next((each for each in layers if each.language is not YAML), None)
    found = last if other else load_document(last.path, laid_over=[each.path for each in below])
    ecosystem = ecosystem_of(other or found, format_name=format_name)
    if not ecosystem.is_layered:
        raise ConfigError(
            f"{ecosystem.name} configs are not laid over one another",
            where=str(last.path),
            hint=f"name one config; --format {LightningCLI.name} reads YAML files as repeated --config",
        )
    return found
