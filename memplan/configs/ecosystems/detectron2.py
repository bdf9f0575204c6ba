"""detectron2's yacs configs: YAML with ``_BASE_``.

Keys and defaults from detectron2's ``config/defaults.py``: ``SOLVER.IMS_PER_BATCH`` is the batch of all cards; lengths
count iterations; there is no accumulation, and mixed precision is fp16. With ``SOLVER.REFERENCE_WORLD_SIZE`` the
trainer rescales batch, rate and lengths itself on another number of cards, so the plan is for the reference.
Tuples are text in YAML (``(30000, 40000)``). Python tags are never constructed.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from memplan.configs.assignments import Assignment, ChildForm, child_path_of
from memplan.configs.ecosystems.ecosystem import Ecosystem
from memplan.configs.keys import contains, get
from memplan.configs.knob_changes import assigned, obstacle_of_single_values, rate_ratio, same_kind, scaled_counts
from memplan.configs.knobs import count_at, rate_at
from memplan.configs.languages.literals import python_word, write_python
from memplan.configs.languages.registry import YAML
from memplan.configs.layout.yaml_child import yaml_child_text
from memplan.configs.user_config import KnobName
from memplan.errors import ConfigError
from memplan.recipe import Precision, Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig

_BATCH, _RATE, _FLOOR, _AMP = "SOLVER.IMS_PER_BATCH", "SOLVER.BASE_LR", "SOLVER.BASE_LR_END", "SOLVER.AMP.ENABLED"
_REFERENCE = "SOLVER.REFERENCE_WORLD_SIZE"
_DEFAULT_BATCH, _DEFAULT_RATE = 16, 0.001
_DEFAULT_LENGTHS: Mapping[str, Any] = {
    "SOLVER.MAX_ITER": 40_000,
    "SOLVER.STEPS": "(30000,)",
    "SOLVER.WARMUP_ITERS": 1000,
    "SOLVER.CHECKPOINT_PERIOD": 5000,
    "TEST.EVAL_PERIOD": 0,
}
_SIGNS = ("IMS_PER_BATCH", "BASE_LR", "MAX_ITER", "STEPS")


class Detectron2(Ecosystem):
    """detectron2's yacs configs."""

    name = "detectron2"
    batch_of_all = _BATCH
    seems_of_one = True
    keys: ClassVar[KnobKeys] = {
        KnobName.MICRO_BATCH_SIZE: (_BATCH,),
        KnobName.LEARNING_RATE: (_RATE,),
        KnobName.MIN_LEARNING_RATE: (_FLOOR,),
        KnobName.PRECISION: (_AMP,),
        KnobName.ITERATIONS: tuple(_DEFAULT_LENGTHS),
    }
    loader_keys: ClassVar[KnobKeys] = {KnobName.LOADER_WORKERS: ("DATALOADER.NUM_WORKERS",)}

    def child_form(self, document: Document) -> ChildForm:
        """Name the parent in ``_BASE_``, from a file beside it."""
        head = (f"_BASE_: {document.path.name}",)
        return ChildForm(path=child_path_of(document.path), write=yaml_child_text, head=head)

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return ``KEY VALUE`` words for the end of the command."""
        return " ".join(f"{each.key} {_as_option(each.value)}" for each in assignments)

    def recognises(self, document: Document) -> bool:
        """Recognise YAML with a key of detectron2's solver, or a model's meta-architecture."""
        solver = document.values.get("SOLVER")
        has_solver = isinstance(solver, Mapping) and any(each in solver for each in _SIGNS)
        return document.language is YAML and (has_solver or contains(document.values, "MODEL.META_ARCHITECTURE"))

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Share the batch among the reference's cards, with detectron2's defaults where the files are silent.

        Raises:
            ConfigError: the batch cannot be shared, or a value is out of range.
        """
        values = document.values
        batch = count_at(document, _BATCH) if contains(values, _BATCH) else _DEFAULT_BATCH
        cards = get(values, _REFERENCE) or 1
        if not isinstance(cards, int) or batch % cards:
            raise ConfigError(f"{_BATCH}={batch} cannot be shared by {cards} cards", where=str(document.path))
        return Recipe(
            micro_batch_size=batch // cards,
            precision=Precision.FP16 if get(values, _AMP) else Precision.FP32,
            learning_rate=rate_at(document, _RATE) if contains(values, _RATE) else _DEFAULT_RATE,
            world_size=cards,
        )

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Say what detectron2 does itself on other numbers of cards."""
        cards = get(document.values, _REFERENCE)
        said = f"{_REFERENCE}={cards}: detectron2 rescales batch, rate and lengths itself on other numbers of cards"
        return (said,) if cards else ()

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return which part of a recipe detectron2's default trainer does not support."""
        if found := obstacle_of_single_values(config, recipe, names=(KnobName.ACTIVATION_CHECKPOINTING,)):
            return found
        if recipe.accumulation_steps != 1:
            return "detectron2's trainer does not accumulate gradients"
        known = (Precision.FP32, Precision.FP16)
        return None if recipe.precision in known else f"{_AMP} has no way to say {recipe.precision}"

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return batch, rates and lengths, those included that detectron2 would take from its defaults."""
        recipe, found = change.recipe, dict[str, tuple[KnobName, Any]]()
        found[_BATCH] = (KnobName.MICRO_BATCH_SIZE, recipe.micro_batch_size * recipe.world_size)
        if recipe.learning_rate is not None:
            found[_RATE] = (KnobName.LEARNING_RATE, same_kind(recipe.learning_rate, get(config.values, _RATE)))
        if get(config.values, _FLOOR) and rate_at(config.document, _FLOOR):
            floor = config.original_value(_FLOOR, get(config.values, _FLOOR))
            found[_FLOOR] = (KnobName.MIN_LEARNING_RATE, same_kind(float(floor) * rate_ratio(config, recipe), floor))
        for key, default in _DEFAULT_LENGTHS.items():
            found[key] = (KnobName.ITERATIONS, _scaled(config, change, key, default))
        found[_AMP] = (KnobName.PRECISION, recipe.precision is Precision.FP16)
        defaults = {**_DEFAULT_LENGTHS, _BATCH: _DEFAULT_BATCH, _RATE: _DEFAULT_RATE, _AMP: False}
        return [
            assigned(change, name, key, value)
            for key, (name, value) in found.items()
            if contains(config.values, key) or value != defaults.get(key)
        ]


def _scaled(config: UserConfig, change: RecipeChange, key: str, default: Any) -> Any:
    """Scale a length, or the text of a tuple of lengths; what the files left to the defaults starts from those."""
    current = get(config.values, key)
    original = config.original_value(key, current)
    original = default if original is None else original
    if not isinstance(original, str):
        return scaled_counts(original, change.iteration_factor, like=original)
    try:
        counts = ast.literal_eval(original)
    except (ValueError, SyntaxError):
        return original
    scaled = scaled_counts(counts, change.iteration_factor, like=counts)
    return original if scaled == counts else write_python(scaled)


def _as_option(value: Any) -> str:
    return shlex.quote(str(value).replace(" ", "") if isinstance(value, str) else str(python_word(value)))
