"""Read accelerate's launch files with accelerate, as ``accelerate launch --config_file`` does."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.configs.evaluation.plain_data import as_plain
from memplan.configs.languages.yaml_source import load_yaml
from memplan.configs.packages.messages import Reading, plain_member

if TYPE_CHECKING:
    from memplan.configs.documents import SourceFile


def read(files: tuple[SourceFile, ...]) -> Reading:
    """Return the launch configuration that accelerate reads from a file, without its defaults."""
    text = files[-1].text
    own = as_plain(load_yaml(text, where=files[-1].path.name))
    load = importlib.import_module("accelerate.commands.config.config_args").load_config_from_file
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "launch.yaml"
        copy.write_bytes(text.encode())
        found = vars(load(str(copy)))
    return Reading(own=own, package={name: plain_member(found[name]) for name in own if name in found})
