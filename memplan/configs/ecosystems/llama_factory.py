"""LLaMA-Factory: TrainingArguments in flat files, with keys of its own.

Activations are checkpointed unless ``disable_gradient_checkpointing``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.configs.ecosystems.huggingface import HuggingFace
from memplan.configs.knob_changes import assigned
from memplan.configs.languages.registry import YAML
from memplan.configs.layout.command_lines import as_pairs
from memplan.configs.user_config import KnobName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig
    from memplan.recipe import Recipe

_DISABLED = "disable_gradient_checkpointing"


class LlamaFactory(HuggingFace):
    """LLaMA-Factory's training files."""

    name = "llama-factory"
    loader_packages = ("omegaconf", "transformers")

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return ``key=value`` words, which are laid over the file."""
        return as_pairs(assignments)

    def recognises(self, document: Document) -> bool:
        """Recognise TrainingArguments with LLaMA-Factory's stage and kind of fine-tuning."""
        has_own = all(each in document.values for each in ("stage", "finetuning_type"))
        return document.language is YAML and has_own and "do_train" in document.values

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the arguments that are in the file; the switch of checkpointing is inverted."""
        return {**super().own_keys(document), KnobName.ACTIVATION_CHECKPOINTING: ()}

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe; activations are checkpointed unless the file turns that off."""
        return replace(super().recipe(document, keys), activation_checkpointing=not document.values.get(_DISABLED))

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the arguments' new values, and the switch that turns checkpointing off."""
        wanted, current = change.recipe.activation_checkpointing, config.recipe.activation_checkpointing
        same = replace(change, recipe=replace(change.recipe, activation_checkpointing=current))
        found = super().assignments(config, same)
        if wanted != current:
            found.append(assigned(change, KnobName.ACTIVATION_CHECKPOINTING, _DISABLED, not wanted))
        return found
