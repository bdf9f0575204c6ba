"""Settings that a training script holds in memory, read by the ecosystem that knows their keys.

Nothing lies on disk, so there is nothing to locate and no patch to write: what an ecosystem says of a change is handed
back as values.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.configs.documents import Document, SourceFile
from memplan.configs.keys import contains, get
from memplan.configs.plain_data import as_plain
from memplan.configs.registry import ecosystem_named
from memplan.configs.syntaxes import PYTHON
from memplan.configs.user_config import Knob, MemplanOptions, UserConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.configs.user_config import RecipeChange

_NOT_IN_A_FILE = "the settings are held in memory"


def config_of_values(values: Mapping[str, Any], *, format_name: str, label: str) -> UserConfig:
    """Read settings as a config of an ecosystem; anything in them that is no plain data is left out of account.

    Args:
        values: nested settings.
        format_name: the ecosystem that knows their keys.
        label: what to call them in messages.

    Raises:
        ConfigError: a value is out of range, or there is no micro-batch size.
    """
    ecosystem = ecosystem_named(format_name)
    source = SourceFile(path=Path(label), text="", sha256=hashlib.sha256(b"").hexdigest())
    document = Document(source=source, syntax=PYTHON, values=as_plain(values, []))
    keys = ecosystem.own_keys(document)
    return UserConfig(
        document=document,
        format_name=format_name,
        recipe=ecosystem.recipe(document, keys),
        knobs=tuple(
            Knob(
                name=name,
                key=key,
                value=get(document.values, key),
                file=None,
                line=None,
                obstacle=_NOT_IN_A_FILE,
            )
            for name, found in keys.items()
            for key in found
        ),
        workload_target=None,
        search_path=(),
        original=None,
        memplan_options=MemplanOptions(),
        notes=ecosystem.remarks(document),
    )


def changed_values(config: UserConfig, change: RecipeChange) -> dict[str, Any]:
    """Return dotted key -> new value for everything that a change of recipe sets and that differs."""
    assignments = ecosystem_named(config.format_name).assignments(config, change)
    return {
        each.key: each.value
        for each in assignments
        if not contains(config.values, each.key) or get(config.values, each.key) != each.value
    }
