"""What both generations of OpenMMLab's configs share: how they inherit, what their names say, rates that runners scale.

Files are named by mmsegmentation's "Config name style", GPUs x batch per GPU: ``x_8xb2-40k.py`` is a recipe for eight
cards with two samples each; the generation before left out the ``b`` (``_8x2_``).

``auto_scale_lr=dict(enable=True, base_batch_size=B)`` (mmdet 2.x, mmengine) multiplies the learning rate with
micro-batch * replicas / B when the optimizer is built; accumulation does not enter. Never scale twice.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.configs.ecosystems.ecosystem import Ecosystem
from memplan.configs.keys import contains, get
from memplan.configs.knob_changes import same_kind
from memplan.configs.layout.command_lines import cfg_options
from memplan.configs.layout.python_child import python_child_form
from memplan.configs.user_config import KnobName
from memplan.units import without_noise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from memplan.configs.assignments import Assignment, ChildForm
    from memplan.configs.documents import Document
    from memplan.configs.user_config import RecipeChange, UserConfig
    from memplan.recipe import Recipe

_SCALES, _BASE_BATCH = "auto_scale_lr.enable", "auto_scale_lr.base_batch_size"
_CARDS = re.compile(r"(?:^|[_-])(?P<cards>\d{1,4})x(?P<b>b?)(?P<batch>\d{1,4})(?=[_-]|$)")


class OpenMMLab(Ecosystem):
    """Python configs that mmengine's ``Config`` loads, those of mmcv's runners included."""

    loader_packages = ("mmengine",)

    def child_form(self, document: Document) -> ChildForm | None:
        """Name the parent in ``_base_``, from a file beside it."""
        return python_child_form(document)

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return options of the train script; older repositories call them ``--options``."""
        return cfg_options(assignments)

    def remarks_on_patch(self, config: UserConfig, assignments: Sequence[Assignment]) -> tuple[str, ...]:
        """Return what a user should know about a rate that is or may be scaled at run time."""
        rate = config.knob(KnobName.LEARNING_RATE)
        is_set = rate is not None and rate.key in {each.key for each in assignments}
        if get(config.values, _SCALES) is True:
            return (
                "auto_scale_lr is enabled: the patch changes only what the runner's scaling of the rate leaves out",
            )
        if is_set and contains(config.values, "auto_scale_lr"):
            return ("do not pass --auto-scale-lr with the patched config: it already holds the scaled rate",)
        return ()

    def on_replicas(self, config: UserConfig, recipe: Recipe, world_size: int) -> Recipe:
        """Return a recipe for another number of replicas, with the learning rate that the runner uses there."""
        moved = super().on_replicas(config, recipe, world_size)
        if recipe.learning_rate is None:
            return moved
        rate = recipe.learning_rate * _factor(config.values, moved) / _factor(config.values, recipe)
        return replace(moved, learning_rate=without_noise(rate))

    def reference_world_size(self, config: UserConfig) -> int | None:
        """Return for how many replicas a config's learning rate is meant; None where it does not say.

        That is the batch of ``auto_scale_lr`` over the config's own, or the file's name (``_8xb2``) where that agrees
        with the config. A runner that scales the rate itself makes it right for any number.
        """
        size, base = config.first_recipe.micro_batch_size, get(config.values, _BASE_BATCH)
        if get(config.values, _SCALES) is True:
            return None
        if isinstance(base, int) and base > 0:
            return base // size if base % size == 0 else None
        return reference_cards(config.path, size)

    def remark_on_replicas(self, config: UserConfig, world_size: int | None) -> str | None:
        """Say for how many cards a config is, where it may run on another number."""
        cards, size = self.reference_world_size(config), config.first_recipe.micro_batch_size
        if world_size is None:
            return remark_on_name(config.path, size)
        if cards in (None, world_size):
            return None
        base = get(config.values, _BASE_BATCH)
        said = f"the file is named for {cards} cards" if base is None else f"{_BASE_BATCH} is {base}"
        return f"{said}: rate and schedule are taken to be for {cards} x {size} samples, not for {world_size} x {size}"


def cards_named_in(path: Path, micro_batch_size: int) -> int | None:
    """Return the number of cards that a file is named for; None where its name does not say.

    Without the ``b`` the second number must be the config's own batch, since image sizes are written so too.
    """
    for match in _CARDS.finditer(path.stem):
        if int(match["cards"]) > 0 and (match["b"] or int(match["batch"]) == micro_batch_size):
            return int(match["cards"])
    return None


def reference_cards(path: Path, micro_batch_size: int) -> int | None:
    """Return the number of cards that a file is named for together with the config's own batch, or None."""
    matches = _CARDS.finditer(path.stem)
    cards = (int(match["cards"]) for match in matches if int(match["batch"]) == micro_batch_size)
    return next((each for each in cards if each > 0), None)


def remark_on_name(path: Path, micro_batch_size: int) -> str | None:
    """Say for how many cards a file is named, and whether its batch is the one in the name; None where it is silent."""
    cards = cards_named_in(path, micro_batch_size)
    batches = [int(match["batch"]) for match in _CARDS.finditer(path.stem) if match["b"]]
    other = f", of {batches[0]} samples each where the config says {micro_batch_size}" if batches else ""
    differs = bool(batches) and batches[0] != micro_batch_size
    hint = f"its learning rate is for them, so give --world-size {cards} where it runs on as many"
    return f"the file is named for {cards} cards{other if differs else ''}: {hint}" if (cards or 1) > 1 else None


def at_run_time(values: Mapping[str, Any], recipe: Recipe) -> Recipe:
    """Return the recipe with the learning rate that the runner will really use, on as many replicas."""
    if recipe.learning_rate is None:
        return recipe
    return replace(recipe, learning_rate=without_noise(recipe.learning_rate * _factor(values, recipe)))


def before_run_time(config: UserConfig, change: RecipeChange, assignment: Assignment) -> Assignment:
    """Return the learning rate to write, so that the runner's own scaling arrives at the wanted one."""
    knob = config.knob(KnobName.LEARNING_RATE)
    if knob is None or assignment.key != knob.key:
        return assignment
    rate = assignment.value / _factor(config.values, change.recipe)
    return replace(assignment, value=same_kind(rate, assignment.value))


def _factor(values: Mapping[str, Any], recipe: Recipe) -> float:
    base = get(values, _BASE_BATCH)
    is_enabled = get(values, _SCALES) is True and isinstance(base, int) and base > 0
    return recipe.micro_batch_size * recipe.world_size / base if is_enabled else 1.0
