"""Configs of no known ecosystem: plain YAML, JSON, TOML or Python; knobs under unmistakable names, or as declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.configs.ecosystem import SingleFile
from memplan.configs.ecosystems.usual_names import unmistakable_keys
from memplan.configs.knobs import (
    RECIPE_KNOBS,
    declared_recipe,
    obstacle_of_single_values,
    single_assignments,
)
from memplan.configs.user_config import KnobName, RecipeChange, UserConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.documents import Document
    from memplan.configs.ecosystem import Assignment, KnobKeys
    from memplan.configs.languages.syntaxes import Syntax
    from memplan.recipe import Recipe


class Plain(SingleFile):
    """A config whose knobs go by their usual names, or are declared: by ``--map``, ``memplan.knobs``, the project."""

    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax

    @property
    def name(self) -> str:
        """The language's name."""
        return f"plain-{self._syntax.name.lower()}"

    def override_line(self, assignments: Sequence[Assignment]) -> None:
        """Return nothing: how the program takes its values is not known."""
        return

    def recognises(self, document: Document) -> bool:
        """Take every config of the language."""
        return document.syntax is self._syntax

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the keys that cannot mean anything else; the user declares the others."""
        return {name: (key,) for name, key in unmistakable_keys(document.values).items()}

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe from the declared keys."""
        return declared_recipe(document, keys)

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Return nothing: what was taken for what is said where the declared knobs are known."""
        return ()

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return which declared key is missing or has no word for the value."""
        return obstacle_of_single_values(config, recipe, names=RECIPE_KNOBS)

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the declared knobs' new values."""
        return single_assignments(config, change, names=tuple(KnobName))
