"""Files that must agree with a config and are patched together with it: the DeepSpeed JSON beside its arguments.

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
    from collections.abc import Sequence

    from memplan.configs.documents import Document
    from memplan.recipe import Recipe

_NAMED_BY = {"huggingface": "deepspeed", "llama-factory": "deepspeed", "axolotl": "deepspeed"}


def companions_of(document: Document, beside: Sequence[Document], *, format_name: str) -> tuple[Document, ...]:
    """Return the files beside a config that spell out anything which must agree with it.

    Args:
        document: the config.
        beside: the files that the user named with it; without any, the one that the config names is loaded, looked for
            beside it and in the working directory.
        format_name: the config's ecosystem.

    Raises:
        ConfigError: the file that it names is there, but cannot be read.
    """
    path = None if beside else _named_file(document, _named(document, format_name))
    found = beside if path is None else [load_document(path)]
    return tuple(each for each in found if concrete_keys(each.values))


def recipe_beside(companion: Document, recipe: Recipe) -> Recipe:
    """Return the recipe of a DeepSpeed file beside arguments that set the given one.

    Raises:
        ConfigError: its ``train_batch_size`` is no multiple of theirs.
    """
    precision = concrete_precision(companion.values) or recipe.precision
    return replace(recipe, precision=precision, world_size=replicas_beside(companion, recipe))


def remarks_on(companions: Sequence[Document], document: Document, *, format_name: str) -> list[str]:
    """Say what the DeepSpeed file beside a config means for a patch; nothing where there is none."""
    changed = [f"{each.path.name} sets {', '.join(concrete_keys(each.values))}" for each in companions]
    return [f"{each}: it is changed with this file" for each in changed] or _remarks_on_named(document, format_name)


def _remarks_on_named(document: Document, format_name: str) -> list[str]:
    named = _named(document, format_name)
    if not named:
        return []
    if _named_file(document, named) is not None:
        return [f"{named} is all 'auto', so it follows the arguments"]
    what = named if isinstance(named, str) else "the deepspeed section"
    return [f"what {what} sets and is not 'auto' must agree with the patched values; memplan leaves it alone"]


def _named(document: Document, format_name: str) -> Any:
    return get(document.values, _NAMED_BY[format_name]) if format_name in _NAMED_BY else None


def _named_file(document: Document, named: Any) -> Path | None:
    """Return the JSON file of a name, beside the config or in the working directory; None where it is not there."""
    if not isinstance(named, str) or not named.endswith(".json"):
        return None
    return next((each / named for each in (document.path.parent, Path.cwd()) if (each / named).is_file()), None)
