"""Files that must agree with a config and are patched together with it: the DeepSpeed JSON that its arguments name.

transformers refuses a DeepSpeed file whose values differ from the TrainingArguments, ``"auto"`` apart; so whatever the
file spells out changes with the arguments, and nothing else in it does.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.configs.deepspeed import concrete_keys, concrete_precision, replicas_beside
from memplan.configs.keys import get
from memplan.configs.loading import load_document

if TYPE_CHECKING:
    from memplan.configs.documents import Document
    from memplan.recipe import Recipe

_NAMED_BY = {"huggingface": "deepspeed", "llama-factory": "deepspeed", "axolotl": "deepspeed"}


def companion_of(document: Document, *, format_name: str) -> Document | None:
    """Load the DeepSpeed file that a config names, looked for beside it and in the working directory.

    Returns:
        The file; None where none is named, it is not there, or all of it is ``"auto"``.

    Raises:
        ConfigError: it is there, but cannot be read.
    """
    path = _named_file(document, _named(document, format_name))
    found = None if path is None else load_document(path)
    return found if found is not None and concrete_keys(found.values) else None


def recipe_beside(companion: Document, recipe: Recipe) -> Recipe:
    """Return the recipe of a DeepSpeed file beside arguments that set the given one.

    Raises:
        ConfigError: its ``train_batch_size`` is no multiple of theirs.
    """
    precision = concrete_precision(companion.values) or recipe.precision
    return replace(recipe, precision=precision, world_size=replicas_beside(companion, recipe))


def remark_on(companion: Document | None, document: Document, *, format_name: str) -> str | None:
    """Say what the named DeepSpeed file means for a patch; None where none is named."""
    named = _named(document, format_name)
    if not named:
        return None
    if companion is None and _named_file(document, named) is not None:
        return f"{named} is all 'auto', so it follows the arguments"
    if companion is not None:
        return f"{companion.path.name} sets {', '.join(concrete_keys(companion.values))}: it is changed with this file"
    what = named if isinstance(named, str) else "the deepspeed section"
    return f"what {what} sets and is not 'auto' must agree with the patched values; memplan leaves it alone"


def _named(document: Document, format_name: str) -> Any:
    return get(document.values, _NAMED_BY[format_name]) if format_name in _NAMED_BY else None


def _named_file(document: Document, named: Any) -> Path | None:
    """Return the JSON file of a name, beside the config or in the working directory; None where it is not there."""
    if not isinstance(named, str) or not named.endswith(".json"):
        return None
    return next((each / named for each in (document.path.parent, Path.cwd()) if (each / named).is_file()), None)
