"""accelerate's launch YAML: precision and, with DeepSpeed, accumulation; batch size and rate are the script's.

Keys from accelerate 1.x's ``accelerate config``. The batch size lies in the training script, so a plan starts from that
script's own config, beside which this file is named, or needs a key for it that the user names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.configs.ecosystem import SingleFile
from memplan.configs.keys import get
from memplan.configs.knobs import (
    RECIPE_KNOBS,
    declared_recipe,
    obstacle_of_single_values,
    single_assignments,
)
from memplan.configs.languages.syntaxes import YAML
from memplan.configs.layout.command_lines import as_flags
from memplan.configs.user_config import KnobName
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.documents import Document
    from memplan.configs.ecosystem import Assignment, KnobKeys
    from memplan.configs.user_config import RecipeChange, UserConfig
    from memplan.recipe import Recipe

_STEPS = "deepspeed_config.gradient_accumulation_steps"
DEEPSPEED_FILE = "deepspeed_config.deepspeed_config_file"


class Accelerate(SingleFile):
    """accelerate's launch configuration."""

    name = "accelerate"
    loader_packages = ("accelerate",)

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return flags of ``accelerate launch``, which has no sections."""
        return as_flags([replace(each, key=each.key.rpartition(".")[2]) for each in assignments])

    def recognises(self, document: Document) -> bool:
        """See YAML with accelerate's compute environment or kind of distribution, and what is its own."""
        signs = ("compute_environment", "distributed_type", "num_machines")
        has_sign = any(each in document.values for each in signs)
        has_own = "mixed_precision" in document.values or "deepspeed_config" in document.values
        return document.syntax is YAML and has_sign and has_own

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the keys that bear on a step."""
        steps, fsdp = get(document.values, _STEPS), get(document.values, "fsdp_config.fsdp_activation_checkpointing")
        return {
            KnobName.PRECISION: ("mixed_precision",) if "mixed_precision" in document.values else (),
            KnobName.ACCUMULATION_STEPS: (_STEPS,) if isinstance(steps, int) else (),
            KnobName.ACTIVATION_CHECKPOINTING: ("fsdp_config.fsdp_activation_checkpointing",)
            if fsdp is not None
            else (),
        }

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe around the batch size that the user named.

        Raises:
            ConfigError: none was named.
        """
        if not keys.get(KnobName.MICRO_BATCH_SIZE):
            named = get(document.values, DEEPSPEED_FILE)
            own = f"name {named}, or the script's own config" if named else "name the script's own config"
            raise ConfigError(
                "an accelerate config sets no batch size, the training script does",
                where=str(document.path),
                hint=f"{own}, and this file behind it, which then changes too",
            )
        return declared_recipe(document, keys)

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Say how many processes share the work."""
        processes = document.values.get("num_processes", 1)
        counted = f"figures are those of one of them; --world-size {processes} counts them all"
        return (f"num_processes={processes}: {counted}",) if processes != 1 else ()

    def obstacle(self, config: UserConfig, recipe: Recipe) -> str | None:
        """Return which key is missing or has no word for the value."""
        return obstacle_of_single_values(config, recipe, names=RECIPE_KNOBS)

    def assignments(self, config: UserConfig, change: RecipeChange) -> list[Assignment]:
        """Return the knobs' new values."""
        return single_assignments(config, change, names=tuple(KnobName))
