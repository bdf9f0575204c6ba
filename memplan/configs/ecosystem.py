"""The contract of a config ecosystem, and the values that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from memplan.configs.user_config import KnobName, PatchStyle, RecipeChange, UserConfig

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.configs.documents import Document
    from memplan.recipe import Precision, Recipe

KnobKeys = Mapping[KnobName, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One effective value that a change sets; a dict takes the place of the whole inherited dict.

    Args:
        key: dotted key.
        value: the new effective value.
        reason: why, in a few words.
        flag: how the command line calls it, where that is not ``--key``.
    """

    key: str
    value: Any
    reason: str
    flag: str | None = None


class ChildWriter(Protocol):
    """Lays out a child config."""

    def __call__(self, parent: UserConfig, assignments: list[Assignment], *, head: tuple[str, ...], marker: str) -> str:
        """Return the child's text: the lines of ``head``, the values that change, and the marker's comment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildForm:
    """How an ecosystem writes a child of a config.

    Args:
        path: where the new file lies.
        head: the lines before its values.
        over: relative paths of what it is laid over by the command line, in order; none where the file itself inherits.
        notes: what the user should know, one sentence each.
        write: lays out the whole file.
    """

    path: Path
    head: tuple[str, ...]
    over: tuple[str, ...]
    notes: tuple[str, ...]
    write: ChildWriter


class Ecosystem(Protocol):
    """One family of configs. Implementations hold no state and run no user code."""

    @property
    def name(self) -> str:
        """Name shown to users and accepted by ``--format``."""

    @property
    def styles(self) -> tuple[PatchStyle, ...]:
        """The ways a change can be written, the default first."""

    @property
    def loader_packages(self) -> tuple[str, ...]:
        """Packages with which its programs load a config, and which verify a patch where they are installed."""

    @property
    def batch_of_all(self) -> str | None:
        """Key of the batch of all replicas, per optimizer step where configs accumulate; None where there is none."""

    @property
    def workload_target(self) -> str | None:
        """Function that makes a workload of any such config; None where configs do not say all that is trained."""

    @property
    def cpu_precisions(self) -> frozenset[Precision]:
        """Number formats in which its programs train on the CPU by keys of their own."""

    def child_form(self, document: Document) -> ChildForm | None:
        """Return how a child of a config is written; None where configs of this kind have none."""

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return the same change as words of the training command; None where there is no such form."""

    def recognises(self, document: Document) -> bool:
        """Return whether a config belongs to this ecosystem, by its content."""

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the dotted keys at which this ecosystem keeps the knobs, those present in the config only."""

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Return the recipe the config sets."""

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Return what a user should know about this config and the keys of its knobs, one sentence each."""

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return why the config cannot express a recipe, or None."""

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the values a change sets, the unchanged ones included."""
