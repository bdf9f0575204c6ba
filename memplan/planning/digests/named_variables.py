"""The environment variables that code names, by their values: code may read them, and decide by them what it trains."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memplan.launchers import without_launch_variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_]+")
# Of a shell, a terminal or one run, and the cards that are shown, which plans know by themselves.
_OF_ONE_SESSION = re.compile(r"PWD|OLDPWD|SHLVL|LINES|COLUMNS|TERM|SLURM_\w+|TORCHELASTIC_\w+|CUDA_VISIBLE_DEVICES")


def named_variables(content: bytes, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield ``NAME=value`` for each variable that is set and whose name stands in a text, in the order of the names.

    Args:
        content: of a file, or a command line.
        environment: all variables. Those that differ from run to run are left out.
    """
    words = set(_WORD.findall(content))
    for name, value in sorted(without_launch_variables(environment).items()):
        if name.encode() in words and not _OF_ONE_SESSION.fullmatch(name):
            yield f"{name}={value}"
