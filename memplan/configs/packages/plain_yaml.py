"""Read a file with PyYAML, for programs that use nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from memplan.configs.evaluation.plain_data import as_plain
from memplan.configs.languages.yaml_source import load_yaml
from memplan.configs.packages.messages import Reading

if TYPE_CHECKING:
    from memplan.configs.documents import SourceFile


def read(files: tuple[SourceFile, ...]) -> Reading:
    """Return the values of a file."""
    text = files[-1].text
    own = as_plain(load_yaml(text, where=files[-1].path.name))
    return Reading(own=own, package=as_plain(yaml.safe_load(text)))
