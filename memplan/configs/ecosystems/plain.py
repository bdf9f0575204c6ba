"""Configs of no known ecosystem: plain YAML, JSON, TOML or Python, with the knobs declared by the user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.configs.ecosystem import SingleFile
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
    """A config whose knobs are declared with ``--map``, ``memplan.knobs`` or ``[tool.memplan]``."""

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
        """Return nothing: the user declares the knobs."""
        return {}

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe from the declared keys."""
        return declared_recipe(document, keys)

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Return nothing: nothing is known about such a config."""
        return ()

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return which declared key is missing or has no word for the value."""
        return obstacle_of_single_values(config, recipe, names=RECIPE_KNOBS)

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the declared knobs' new values."""
        return single_assignments(config, change, names=tuple(KnobName))
