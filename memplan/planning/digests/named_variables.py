"""The environment variables that code names, by their values: code may read them, and decide by them what it trains."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from memplan.launchers import without_launch_variables

if TYPE_CHECKING:
    from collections.abc import Mapping

_WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_]+")
# Of a shell, a terminal or one run, and the cards that are shown, which plans know by themselves.
_OF_ONE_SESSION = re.compile(r"PWD|OLDPWD|SHLVL|LINES|COLUMNS|TERM|SLURM_\w+|TORCHELASTIC_\w+|CUDA_VISIBLE_DEVICES")


def steady_variables(environment: Mapping[str, str]) -> dict[bytes, str]:
    """Return name -> ``NAME=value`` of the variables that do not differ from run to run, in the order of the names."""
    return {
        os.fsencode(name): f"{name}={value}"
        for name, value in sorted(without_launch_variables(environment).items())
        if not _OF_ONE_SESSION.fullmatch(name)
    }


def named_variables(content: bytes, variables: Mapping[bytes, str]) -> list[str]:
    """Return ``NAME=value`` for each variable whose name stands in a text.

    Args:
        content: of a file, or a command line.
        variables: those that count, of :func:`steady_variables`.
    """
    words = set(_WORD.findall(content))
    return [line for name, line in variables.items() if name in words]
