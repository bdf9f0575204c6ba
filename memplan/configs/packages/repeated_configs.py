"""Merge YAML files with jsonargparse, as LightningCLI does with repeated ``--config`` options.

The program's own parser is not known here, nor are its classes imported: every value of the files is an argument of its
own, and of any type. So what jsonargparse says is what it reads, which file wins, and what ``key+`` is appended to.
"""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan.configs.evaluation.yaml_chain import laid_over_in_order
from memplan.configs.keys import get, leaves, with_value
from memplan.configs.packages.messages import Reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan.configs.documents import SourceFile

_OPTION = "memplan-config"  # which no program's own option is called


def read(files: tuple[SourceFile, ...]) -> Reading:
    """Return the values of files, the later over the earlier."""
    own = laid_over_in_order(files)
    parser = importlib.import_module("jsonargparse").ArgumentParser(exit_on_error=False)
    parser.add_argument(f"--{_OPTION}", action="config")
    names = {key: key.removesuffix("+") for key in leaves(own)}
    for key, name in names.items():
        is_list = key != name or isinstance(get(own, key), list)
        parser.add_argument(f"--{name}", type=list[Any] if is_list else Any)
    with tempfile.TemporaryDirectory() as folder:
        found = parser.parse_args([f"--{_OPTION}={each}" for each in _copies(files, Path(folder))]).as_dict()
    laid: dict[str, Any] = {}
    for key, name in names.items():
        laid = with_value(laid, key, get(found, name))
    return Reading(own=own, package=laid)


def _copies(files: Sequence[SourceFile], folder: Path) -> list[Path]:
    copies = [folder / f"{index}.yaml" for index in range(len(files))]
    for copy, file in zip(copies, files, strict=True):
        copy.write_bytes(file.text.encode())
    return copies
