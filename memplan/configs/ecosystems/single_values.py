"""The default behaviour of an ecosystem: every knob is one value at one key, in one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from memplan.configs.knob_changes import obstacle_of_single_values, single_assignments
from memplan.configs.knobs import RECIPE_KNOBS, declared_recipe, keys_in
from memplan.configs.user_config import KnobName, PatchStyle
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.documents import Document
    from memplan.configs.ecosystem import Assignment, ChildForm, KnobKeys
    from memplan.configs.user_config import RecipeChange, UserConfig
    from memplan.recipe import Recipe


class SingleValues:
    """The defaults of :class:`memplan.configs.ecosystem.Ecosystem`: no children, no command line, nothing implied."""

    keys: ClassVar[KnobKeys] = {}
    batch_of_all: str | None = None
    loader_packages: tuple[str, ...] = ()
    workload_target: str | None = None
    cpu_precisions: frozenset[Precision] = frozenset(Precision)
    styles: tuple[PatchStyle, ...] = (PatchStyle.IN_PLACE,)

    def child_form(self, document: Document) -> ChildForm | None:
        """Return nothing: there are no children."""

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return nothing: how the program takes its values is not known, or only from the file."""

    def own_keys(self, document: Document) -> KnobKeys:
        """Return those of ``keys`` that are set."""
        return keys_in(document.values, self.keys)

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe from the keys."""
        return declared_recipe(document, keys)

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Return nothing."""
        return ()

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return which key is missing or has no word for the value."""
        return obstacle_of_single_values(config, recipe, names=RECIPE_KNOBS)

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the knobs' new values."""
        return single_assignments(config, change, names=tuple(KnobName))
