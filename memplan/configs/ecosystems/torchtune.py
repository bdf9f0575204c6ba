"""torchtune's recipe YAML.

From torchtune 0.6's recipes: ``batch_size`` is that of one device, ``dtype`` is the type in which the whole model is
held, weights included, as no recipe autocasts; ``max_steps_per_epoch``, ``num_warmup_steps`` and
``save_every_n_steps`` count optimizer steps; ``optimizer_in_bwd`` excludes accumulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from memplan.configs.ecosystems.ecosystem import Ecosystem
from memplan.configs.keys import get
from memplan.configs.knob_changes import assigned, obstacle_of_single_values
from memplan.configs.knobs import RECIPE_KNOBS, declared_recipe
from memplan.configs.languages.literals import python_word
from memplan.configs.languages.registry import YAML
from memplan.configs.layout.command_lines import as_pairs
from memplan.configs.user_config import KnobName
from memplan.errors import ConfigError, hint_on_names
from memplan.recipe import Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys, RecipeChange, UserConfig
    from memplan.recipe import Recipe

_DTYPE, _IN_BACKWARD = "dtype", "optimizer_in_bwd"
_WORDS = {Precision.FP32: "fp32", Precision.BF16_TRUE: "bf16", Precision.FP16_TRUE: "fp16"}


class TorchTune(Ecosystem):
    """torchtune's recipe files."""

    name = "torchtune"
    keys: ClassVar[KnobKeys] = {
        KnobName.MICRO_BATCH_SIZE: ("batch_size",),
        KnobName.ACCUMULATION_STEPS: ("gradient_accumulation_steps",),
        KnobName.LEARNING_RATE: ("optimizer.lr",),
        KnobName.ACTIVATION_CHECKPOINTING: ("enable_activation_checkpointing",),
        KnobName.OPTIMIZER_STEPS: ("max_steps_per_epoch", "lr_scheduler.num_warmup_steps", "save_every_n_steps"),
    }

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return ``key=value`` words, which come after the file."""
        return as_pairs(assignments, write=python_word)

    def recognises(self, document: Document) -> bool:
        """Recognise a model or a data set that is made by a part of torchtune."""
        makers = (get(document.values, f"{each}._component_") for each in ("model", "dataset"))
        return document.language is YAML and any(str(each).startswith("torchtune.") for each in makers)

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe; the weights have the type of the activations.

        Raises:
            ConfigError: that type is not known.
        """
        return declared_recipe(document, keys, precision=_precision(document))

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return why these files cannot express a recipe."""
        names = tuple(each for each in RECIPE_KNOBS if each is not KnobName.PRECISION)
        if found := obstacle_of_single_values(config, recipe, names=names):
            return found
        if recipe.accumulation_steps > 1 and get(config.values, _IN_BACKWARD):
            return f"{_IN_BACKWARD} excludes accumulation"
        if recipe.precision == config.recipe.precision:
            return None
        if recipe.precision not in _WORDS:
            return f"torchtune has no word for {recipe.precision}: {_DTYPE} is the type of the weights, too"
        return None if get(config.values, _DTYPE) else f"the config has no {_DTYPE}"

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the new values."""
        found = super().assignments(config, change)
        if change.recipe.precision != config.recipe.precision:
            found.append(assigned(change, KnobName.PRECISION, _DTYPE, _WORDS[change.recipe.precision]))
        return found


def _precision(document: Document) -> Precision:
    word = get(document.values, _DTYPE)
    if word is None:
        return Precision.FP32
    found = next((each for each, known in _WORDS.items() if known == word), None)
    if found is None:
        raise ConfigError(
            f"{_DTYPE}={word!r} is not a type memplan knows",
            where=str(document.path),
            hint=hint_on_names(str(word), _WORDS.values()),
        )
    return found
