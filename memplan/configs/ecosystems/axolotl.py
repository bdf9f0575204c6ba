"""axolotl: TrainingArguments in flat files, with keys of its own.

The micro-batch is ``micro_batch_size``; ``batch_size``, its product with the accumulation, may take the place of
``gradient_accumulation_steps``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from memplan.configs.ecosystems.huggingface import STEPS_KEY, HuggingFace
from memplan.configs.knob_changes import assigned
from memplan.configs.knobs import count_at
from memplan.configs.languages.registry import YAML
from memplan.configs.layout.command_lines import as_flags
from memplan.configs.user_config import KnobName
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig
    from memplan.recipe import Recipe

_MICRO, _PRODUCT = "micro_batch_size", "batch_size"


class Axolotl(HuggingFace):
    """axolotl's training files."""

    name = "axolotl"
    loader_packages = ("yaml",)
    addable_loader_keys: ClassVar[Mapping[KnobName, str]] = {}

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return flags of ``axolotl train``."""
        return as_flags(assignments, dashed=True)

    def recognises(self, document: Document) -> bool:
        """Recognise YAML with axolotl's micro-batch and a model or data set."""
        values = document.values
        return document.language is YAML and _MICRO in values and ("base_model" in values or "datasets" in values)

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe; accumulation follows from the product where only that is given.

        Raises:
            ConfigError: it sets none, or the product is no multiple of the micro-batch.
        """
        found = super().recipe(document, keys)
        if not _by_product(document.values):
            return found
        product = count_at(document, _PRODUCT)
        if product % found.micro_batch_size:
            what = f"{_PRODUCT}={product} is no multiple of {_MICRO}={found.micro_batch_size}"
            raise ConfigError(what, where=str(document.path))
        return replace(found, accumulation_steps=product // found.micro_batch_size)

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Return what else in the file depends on the micro-batch."""
        found = list(super().remarks(document, keys))
        if "eval_batch_size" in document.values:
            found.append("eval_batch_size is left alone, though axolotl wants it equal to micro_batch_size")
        if document.values.get("sample_packing"):
            found.append("with sample_packing a sample is a whole packed sequence")
        return tuple(found)

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the arguments' new values; the product changes where the file gives that instead of accumulation."""
        found = super().assignments(config, change)
        if not _by_product(config.values):
            return found
        product = change.recipe.micro_batch_size * change.recipe.accumulation_steps
        kept = (each for each in found if each.key != STEPS_KEY)
        return [*kept, assigned(change, KnobName.ACCUMULATION_STEPS, _PRODUCT, product)]


def _by_product(values: dict[str, object]) -> bool:
    return values.get(STEPS_KEY) is None and values.get(_PRODUCT) is not None
