"""A user's config as a value: what it sets, the key of each knob, and a change to be made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from memplan.configs.missing_workload import missing_workload
from memplan.workload import WorkloadReference

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memplan.configs.documents import Document
    from memplan.recipe import Recipe


class KnobName(StrEnum):
    """What memplan can turn in a config, by the names that ``--map`` and ``knobs=dict(...)`` use.

    ``global_batch_size`` is the key of a batch of all replicas per optimizer step, from which accumulation follows.
    Of several keys of ``learning_rate`` the first is the recipe's, and the others follow in proportion.
    ``iterations`` and ``optimizer_steps`` take several keys, separated by commas: lengths and intervals counted in
    forward/backward passes and in optimizer steps. The loader's settings change only where that is asked for.
    """

    MICRO_BATCH_SIZE = "micro_batch_size"
    ACCUMULATION_STEPS = "accumulation_steps"
    GLOBAL_BATCH_SIZE = "global_batch_size"
    PRECISION = "precision"
    AMP_DTYPE = "amp_dtype"
    LEARNING_RATE = "learning_rate"
    MIN_LEARNING_RATE = "min_learning_rate"
    ACTIVATION_CHECKPOINTING = "activation_checkpointing"
    ITERATIONS = "iterations"
    OPTIMIZER_STEPS = "optimizer_steps"
    LOADER_WORKERS = "loader_workers"
    PIN_MEMORY = "pin_memory"
    PREFETCH_FACTOR = "prefetch_factor"
    PERSISTENT_WORKERS = "persistent_workers"


KnobKeys = Mapping[KnobName, tuple[str, ...]]  # the dotted keys of each knob


class PatchStyle(StrEnum):
    """How a change is written: a config that inherits from the user's, the user's own file edited, or flags alone."""

    CHILD = "child"
    IN_PLACE = "in-place"
    FLAGS = "flags"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One knob found in a config.

    Args:
        name: what it sets.
        key: dotted key in the effective config.
        value: effective value.
    """

    name: KnobName
    key: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MemplanOptions:
    """What a config's ``memplan`` section, or ``[tool.memplan]`` of its project, or a caller sets.

    None where it sets nothing.

    Args:
        workload: ``package.module:function``.
        knobs: knob name -> dotted key.
        device: card name, size, live device or ``cpu``.
        budget: size text such as ``24GiB``, or bytes.
        max_util: upper edge of the utilisation band.
        min_util: lower edge of the utilisation band.
        precision: precisions to compare.
        global_batch: samples per optimizer step to hold.
        max_batch: largest micro-batch to consider.
        lr_rule: ``linear``, ``sqrt`` or ``none``.
        loader: whether the patch may change the settings of the data loader.
    """

    workload: str | None = None
    knobs: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    budget: str | int | None = None
    max_util: float | None = None
    min_util: float | None = None
    precision: str | Sequence[str] | None = None
    global_batch: int | None = None
    max_batch: int | None = None
    lr_rule: str | None = None
    loader: bool | None = None

    def over(self, others: MemplanOptions) -> MemplanOptions:
        """Return these, and the others where these are silent."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(others, **{name: value for name, value in said.items() if value is not None and value != {}})


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalRecipe:
    """What a config said before memplan first changed it, as recorded by the marker in the patched file.

    Args:
        recipe: the recipe before the first change.
        values: dotted key -> value before the first change, schedule lengths included; None where it was not set.
        options: planning facts that the planner stored with the change.
    """

    recipe: Recipe
    values: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserConfig:
    """A user's config, read.

    Args:
        document: the file, its language and its effective values.
        format_name: the ecosystem it belongs to, e.g. ``openmmlab-0.x``.
        recipe: the recipe it sets.
        knobs: the knobs that were found in it.
        workload_target: ``package.module:function``; None where neither the config nor the caller names one.
        search_path: folders in which the workload's module is looked for, in order.
        original: what it said before memplan first changed it; None where memplan never did.
        memplan_options: the options for memplan that it sets.
        notes: what a reader should know, one phrase each.
        companions: what must agree with this config and is patched together with it.
        replicas: data-parallel replicas that the launcher it belongs to starts; None where it does not say.
        within: key of the config, whose companion this is, that holds it as a section; empty for a file of its own.
        said: values that the training command says over the file's, by dotted key.
    """

    document: Document
    format_name: str
    recipe: Recipe
    knobs: tuple[Knob, ...]
    workload_target: str | None = None
    search_path: tuple[str, ...] = ()
    original: OriginalRecipe | None = None
    memplan_options: MemplanOptions = field(default_factory=MemplanOptions)
    notes: tuple[str, ...] = ()
    companions: tuple[UserConfig, ...] = ()
    replicas: int | None = None
    within: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The config file, absolute; of several overlays the last."""
        return self.document.path

    @property
    def file_names(self) -> tuple[str, ...]:
        """The names of the files it is made of, as the training command gives them in order."""
        return (*(each.name for each in self.document.laid_over), self.path.name)

    @property
    def values(self) -> dict[str, Any]:
        """The effective config as plain nested data, with what the training command says."""
        return {**self.document.values, **self.said}

    @property
    def workload(self) -> WorkloadReference:
        """The workload function the config names.

        Raises:
            ConfigError: neither the config nor the caller names one.
        """
        if self.workload_target is None:
            batch, total = self.knob(KnobName.MICRO_BATCH_SIZE), self.knob(KnobName.GLOBAL_BATCH_SIZE)
            key = "batch_size" if batch is None else batch.key
            raise missing_workload(self.document, key, is_of_all_replicas=total is not None and total.key == key)
        return WorkloadReference(
            target=self.workload_target,
            config=self.document.resolved_values,
            config_path=str(self.path),
            search_path=self.search_path,
        )

    @property
    def first_recipe(self) -> Recipe:
        """The recipe it set before memplan first changed it."""
        return self.original.recipe if self.original else self.recipe

    def knob(self, name: KnobName) -> Knob | None:
        """Return the first knob of that name, or None."""
        return next((each for each in self.knobs if each.name == name), None)

    def is_said(self, name: KnobName) -> bool:
        """Whether the training command says the value of the first knob of that name."""
        knob = self.knob(name)
        return knob is not None and knob.key in self.said

    def is_set_beside(self, name: KnobName) -> bool:
        """Whether something that is patched together with this config has a knob of that name."""
        return any(each.knob(name) is not None for each in self.companions)

    def original_value(self, key: str, current: Any) -> Any:
        """Return what a key said before memplan first changed it."""
        return current if self.original is None else self.original.values.get(key, current)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChange:
    """A change of recipe that is to be written into a config.

    Args:
        recipe: the recipe the config shall set; its learning rate is left alone where it is None.
        reasons: knob name -> why it changes.
        iteration_factor: by how much lengths counted in forward/backward passes change, against the original config.
        optimizer_step_factor: by how much lengths counted in optimizer steps change, against the original config.
        options: planning facts kept in the marker, JSON-ready.
        loader: settings of the data loader that shall change, too.
    """

    recipe: Recipe
    reasons: Mapping[str, str] = field(default_factory=dict)
    iteration_factor: Fraction = Fraction(1)
    optimizer_step_factor: Fraction = Fraction(1)
    options: Mapping[str, Any] = field(default_factory=dict)
    loader: Mapping[KnobName, int | bool] = field(default_factory=dict)
