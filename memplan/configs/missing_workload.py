"""What to do where a config says nothing of what is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.configs.languages.argparse_source import flag_in
from memplan.configs.languages.registry import ARGUMENTS, SHELL
from memplan.errors import ConfigError
from memplan.user_places import seen_from_here

if TYPE_CHECKING:
    from memplan.configs.documents import Document

_NAMED = "or name a function that returns a memplan.Workload by --workload module:function, in Python by workload="


def missing_workload(document: Document, batch_key: str, *, is_of_all_replicas: bool) -> ConfigError:
    """Return the error that a config names no workload, with the command that does without one.

    Args:
        document: the config.
        batch_key: where its batch size is.
        is_of_all_replicas: whether that is the batch of all replicas.
    """
    placeholder = "{global_batch_size}" if is_of_all_replicas else "{micro_batch_size}"
    return ConfigError(
        "the config names no workload, which says what is trained",
        where=str(document.path),
        hint=f"{_with_a_command(document, batch_key, placeholder)}; {_NAMED}",
    )


def _with_a_command(document: Document, batch_key: str, placeholder: str) -> str:
    """Return how memplan runs the training that belongs to a config."""
    file = seen_from_here(document.path)
    probe = f"memplan probe {file} --command"
    if document.language is ARGUMENTS:
        flag = flag_in(document.source.text, batch_key)
        return f'have memplan run the script: {probe} "python {file} ... {flag} {placeholder}"'
    if document.language is SHELL:
        return f'have memplan run the training command in it: {probe} "... {placeholder}"'
    return f'have memplan run your training script: {probe} "python train.py ... {{patched_config}}"'
