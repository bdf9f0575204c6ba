"""The contract of a config ecosystem, with its defaults: every knob is one value at one key, in one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from memplan.configs.knob_changes import obstacle_of_single_values, single_assignments
from memplan.configs.knobs import RECIPE_KNOBS, declared_recipe, keys_in
from memplan.configs.user_config import KnobName, PatchStyle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.assignments import Assignment, ChildForm, KnobKeys
    from memplan.configs.documents import Document
    from memplan.configs.user_config import RecipeChange, UserConfig
    from memplan.recipe import Precision, Recipe


class Ecosystem(ABC):
    """One family of configs. Implementations run no user code.

    Args:
        name: shown to users and accepted by ``--format``.
        keys: the dotted keys of the knobs, where these are always the same.
        childless_style: the way a change is written where a config has no children.
        loader_packages: packages with which its programs load a config, and which verify a patch where installed.
        batch_of_all: key of the batch of all replicas, per optimizer step where configs accumulate; None for none.
        workload_target: function that makes a workload of any such config; None where configs do not say all of it.
    """

    name: str
    keys: ClassVar[KnobKeys] = {}
    childless_style: PatchStyle = PatchStyle.IN_PLACE
    loader_packages: tuple[str, ...] = ()
    batch_of_all: str | None = None
    workload_target: str | None = None

    @abstractmethod
    def recognises(self, document: Document) -> bool:
        """Whether a config belongs to this ecosystem, by its content."""

    def child_form(self, document: Document) -> ChildForm | None:
        """Return how a child of a config is written; None where configs of this kind have none."""
        return None

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return the same change as words of the training command; None where there is no such form."""
        return None

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the dotted keys at which this ecosystem keeps the knobs, those present in the config only."""
        return keys_in(document.values, self.keys)

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Return the recipe the config sets.

        Raises:
            ConfigError: it sets none, or one that cannot be.
        """
        return declared_recipe(document, keys)

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Return what a user should know about this config and the keys of its knobs, one phrase each."""
        return ()

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return why the config cannot express a recipe, or None."""
        return obstacle_of_single_values(config, recipe, names=RECIPE_KNOBS)

    def obstacle_on_cpu(self, config: UserConfig, precision: Precision) -> str | None:
        """Return why its programs do not train in a precision on the CPU, switched by their own keys, or None."""
        return None

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the values a change sets, the unchanged ones included."""
        return single_assignments(config, change, names=tuple(KnobName))
