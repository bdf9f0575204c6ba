"""Find out whether a data module shares the configured batch among the devices; its source is read, not run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memplan.configs.discovery import search_path_of
from memplan.configs.documents import read_source
from memplan.configs.keys import get
from memplan.configs.languages.spans import line_at
from memplan.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from memplan.configs.documents import Document

_CLASS_KEYS = ("data._target_", "datamodule._target_", "data.class_path", "fit.data.class_path")
_DIVISION = re.compile(r"batch_size\w*\s*//?=?\s*[\w.()\[\]\"']*(?:world_size|num_devices|n_gpus|num_gpus)")


def division_of_batch(document: Document) -> str | None:
    """Return file and line at which the project's data module divides its batch size by the number of devices.

    None where it does not, or where its source is not found in the project.
    """
    named = next((each for each in (get(document.values, key) for key in _CLASS_KEYS) if isinstance(each, str)), None)
    path = None if named is None else _source_of(named, document)
    if path is None:
        return None
    try:
        text = read_source(path).text
    except ConfigError:
        return None
    match = _DIVISION.search(text)
    return None if match is None else f"{path.name}:{line_at(text, match.start())}"


def _source_of(class_name: str, document: Document) -> Path | None:
    *module, _ = class_name.split(".")
    folders = [document.path.parent / each for each in search_path_of(document.path)]
    places = [folder.joinpath(*module).with_suffix(".py") for folder in folders if module]
    return next((each for each in places if each.is_file()), None)
