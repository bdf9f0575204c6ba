"""accelerate's launch YAML: precision and, with DeepSpeed, accumulation; batch size and rate are the script's.

Keys from accelerate 1.x's ``accelerate config``. The batch size is in the training script, so a plan starts from that
script's own config, named together with this file, or needs a key for it that the user names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.configs.ecosystems.ecosystem import Ecosystem
from memplan.configs.keys import get
from memplan.configs.languages.registry import SHELL, YAML
from memplan.configs.languages.shell_source import launcher_value
from memplan.configs.layout.command_lines import as_flags
from memplan.configs.user_config import KnobName
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.assignments import Assignment
    from memplan.configs.documents import Document
    from memplan.configs.user_config import KnobKeys
    from memplan.recipe import Recipe

_PRECISION, _STEPS = "mixed_precision", "deepspeed_config.gradient_accumulation_steps"
_CHECKPOINTING = "fsdp_config.fsdp_activation_checkpointing"
PROCESSES = "num_processes"  # of all machines
DEEPSPEED_FILE = "deepspeed_config.deepspeed_config_file"
_LAUNCHER_FLAG = "config_file"  # of ``accelerate launch``
_ARGUMENT = "accelerate_config"  # of TRL's commands


class Accelerate(Ecosystem):
    """accelerate's launch configuration."""

    name = "accelerate"
    loader_packages = ("accelerate",)

    def override_line(self, assignments: Sequence[Assignment]) -> str | None:
        """Return flags of ``accelerate launch``, which has no sections."""
        return as_flags([replace(each, key=each.key.rpartition(".")[2]) for each in assignments])

    def recognises(self, document: Document) -> bool:
        """Recognise YAML with accelerate's compute environment or kind of distribution, and what is its own."""
        signs = ("compute_environment", "distributed_type", "num_machines")
        has_sign = any(each in document.values for each in signs)
        has_own = _PRECISION in document.values or "deepspeed_config" in document.values
        return document.language is YAML and has_sign and has_own

    def own_keys(self, document: Document) -> KnobKeys:
        """Return the keys that affect a step."""
        values = document.values
        return {
            KnobName.PRECISION: (_PRECISION,) if _PRECISION in values else (),
            KnobName.ACCUMULATION_STEPS: (_STEPS,) if isinstance(get(values, _STEPS), int) else (),
            KnobName.ACTIVATION_CHECKPOINTING: (_CHECKPOINTING,) if get(values, _CHECKPOINTING) is not None else (),
        }

    def recipe(self, document: Document, keys: KnobKeys) -> Recipe:
        """Read the recipe, with the batch size that the user named.

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
        return super().recipe(document, keys)

    def remarks(self, document: Document, keys: KnobKeys) -> tuple[str, ...]:
        """Say how many processes share the work."""
        processes = document.values.get(PROCESSES, 1)
        return (f"{PROCESSES}={processes} is taken as the number of replicas",) if processes != 1 else ()


def launch_file_named_in(document: Document) -> Any:
    """Return what training arguments, or the launcher of a script, name as accelerate's file; None where nothing."""
    if document.language is SHELL:
        return launcher_value(document.source.text, _LAUNCHER_FLAG)
    return document.values.get(_ARGUMENT)
