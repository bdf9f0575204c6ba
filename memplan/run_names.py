"""How a stored run is named: by its id or as the last one, and by the folder it is stored in."""

from __future__ import annotations

import shlex
from pathlib import Path

DEFAULT_STORE = Path(".memplan")
LAST_RUN = "last"  # stands for the id of the run last written to


def store_option(store: Path) -> str:
    """Return what a command line needs to find a store, ready to be put behind the rest; empty for the default one."""
    return "" if store == DEFAULT_STORE else f" --store {shlex.quote(str(store))}"
