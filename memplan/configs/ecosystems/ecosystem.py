"""The contract of a config ecosystem, with its defaults: every knob is one value at one key, in one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from memplan.configs.keys import get
from memplan.configs.knob_changes import assigned, obstacle_of_single_values, single_assignments
from memplan.configs.knobs import RECIPE_KNOBS, declared_recipe, keys_in
from memplan.configs.user_config import KnobName, PatchStyle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan.configs.assignments import Assignment, ChildForm
    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig
    from memplan.recipe import Precision, Recipe

TORCH_LOADER = {
    KnobName.LOADER_WORKERS: "num_workers",
    KnobName.PIN_MEMORY: "pin_memory",
    KnobName.PREFETCH_FACTOR: "prefetch_factor",
    KnobName.PERSISTENT_WORKERS: "persistent_workers",
}
LOADER_KNOBS = tuple(TORCH_LOADER)


def torch_loader_keys(*prefixes: str) -> dict[KnobName, tuple[str, ...]]:
    """Return the keys of the data loader's settings under torch's own names, behind each of the prefixes."""
    return {name: tuple(f"{each}{own}" for each in prefixes) for name, own in TORCH_LOADER.items()}


class Ecosystem(ABC):
    """One family of configs. Implementations run no user code.

    Args:
        name: shown to users and accepted by ``--format``.
        keys: the dotted keys of the knobs, where these are always the same.
        loader_keys: the dotted keys of the data loader's settings, of which the first that is set counts.
        addable_loader_keys: those that a config can be given, since torch's own default of no holds without them.
        is_layered: whether its programs lay several configs over one another, in the order of the command.
        childless_style: the way a change is written where a config has no children.
        loader_packages: packages with which its programs load a config, and which verify a patch where installed.
        batch_of_all: key of the batch of all replicas, per optimizer step where configs accumulate; None for none.
        seems_of_one: whether that batch is easily mistaken for that of one replica.
        workload_target: function that makes a workload of any such config; None where configs do not say all of it.
    """

    name: str
    keys: ClassVar[KnobKeys] = {}
    loader_keys: ClassVar[KnobKeys] = {}
    addable_loader_keys: ClassVar[Mapping[KnobName, str]] = {}
    is_layered: bool = False
    childless_style: PatchStyle = PatchStyle.IN_PLACE
    loader_packages: tuple[str, ...] = ()
    batch_of_all: str | None = None
    seems_of_one: bool = False
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

    def companion_names(self, document: Document) -> Mapping[str, Any]:
        """Return what a config names of the files that must agree with it: ecosystem -> path, or settings in its place.

        None for a kind of file that it may have, but does not name; empty where there are no such kinds.
        """
        return {}

    def values_said(self, document: Document, line: str) -> Mapping[str, Any]:
        """Return the values that a training command says over those of the config, by key, or that one is not known."""
        return {}

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the dotted keys at which this ecosystem keeps the knobs, those present in the config only."""
        return keys_in(document.values, self.keys)

    def all_keys(self, document: Document) -> KnobKeys:
        """Return the dotted keys of the knobs and of the data loader's settings that are present in the config."""
        values = document.values
        loader = {
            name: [each for each in keys if isinstance(get(values, each), int)]
            for name, keys in self.loader_keys.items()
        }
        return {**{name: tuple(found[:1]) for name, found in loader.items() if found}, **self.own_keys(document)}

    def loader_key(self, config: UserConfig, name: KnobName) -> str | None:
        """Return the key of a loader setting that a config has or can be given; None where there is none."""
        knob = config.knob(name)
        return self.addable_loader_keys.get(name) if knob is None else knob.key

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Return the recipe the config sets.

        Raises:
            ConfigError: it sets none, or one that cannot be.
        """
        return declared_recipe(document, keys)

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Return what a user should know about this config and the keys of its knobs, one phrase each."""
        return ()

    def remarks_on_patch(self, config: UserConfig, assignments: Sequence[Assignment]) -> tuple[str, ...]:
        """Return what a user should know about a patch that sets these values, one phrase each."""
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

    def loader_assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the settings of the loader that a change makes; one without a key is left out."""
        keys = {name: self.loader_key(config, name) for name in change.loader}
        return [assigned(change, name, key, change.loader[name]) for name, key in keys.items() if key is not None]

    def key_of_all(self, config: UserConfig) -> str | None:
        """Return the key of the batch of all replicas; None where a config holds the batch of one."""
        if (knob := config.knob(KnobName.GLOBAL_BATCH_SIZE)) is not None:
            return knob.key
        total = None if self.batch_of_all is None else get(config.values, self.batch_of_all)
        is_default = config.knob(KnobName.MICRO_BATCH_SIZE) is None  # left to the ecosystem, it is that of all of them
        return self.batch_of_all if is_default or (isinstance(total, int) and total > 0) else None

    def on_replicas(self, config: UserConfig, recipe: Recipe, world_size: int) -> Recipe:
        """Return a recipe of a config for another number of replicas."""
        return replace(recipe, world_size=world_size)

    def reference_world_size(self, config: UserConfig) -> int | None:
        """Return for how many replicas a config's learning rate is meant; None where it does not say."""
        return None

    def remark_on_replicas(self, config: UserConfig, world_size: int | None) -> str | None:
        """Return what a user should know about a config on so many replicas; None for the number where it is open."""
        key = self.key_of_all(config) if world_size is None and config.recipe.world_size == 1 else None
        is_unsaid = self.seems_of_one or config.knob(KnobName.GLOBAL_BATCH_SIZE) is not None
        if key is None or not is_unsaid:
            return None
        return f"{key} is the batch of all cards: give --world-size where there are several"
