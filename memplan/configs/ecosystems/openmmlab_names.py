"""What OpenMMLab's file names say: ``x_8xb2-40k.py`` is a recipe for eight cards with two samples each.

From mmsegmentation's "Config name style": GPUs x batch per GPU; the generation before left out the ``b`` (``_8x2_``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAMED_FOR_CARDS = ("openmmlab-0.x", "mmengine")
_CARDS = re.compile(r"(?:^|[_-])(?P<cards>\d{1,4})x(?P<b>b?)(?P<batch>\d{1,4})(?=[_-]|$)")


def cards_named_in(path: Path, micro_batch_size: int) -> int | None:
    """Return the number of cards that a file is named for; None where its name does not say.

    Without the ``b`` the second number must be the config's own batch, since image sizes are written so too.
    """
    for match in _CARDS.finditer(path.stem):
        if int(match["cards"]) > 0 and (match["b"] or int(match["batch"]) == micro_batch_size):
            return int(match["cards"])
    return None


def reference_cards(path: Path, micro_batch_size: int) -> int | None:
    """Return the number of cards that a file is named for together with the config's own batch, or None."""
    matches = _CARDS.finditer(path.stem)
    cards = (int(match["cards"]) for match in matches if int(match["batch"]) == micro_batch_size)
    return next((each for each in cards if each > 0), None)


def remark_on_name(path: Path, micro_batch_size: int) -> str | None:
    """Say for how many cards a file is named, and whether its batch is the one in the name; None where it is silent."""
    cards = cards_named_in(path, micro_batch_size)
    batches = [int(match["batch"]) for match in _CARDS.finditer(path.stem) if match["b"]]
    other = f", of {batches[0]} samples each where the config says {micro_batch_size}" if batches else ""
    differs = bool(batches) and batches[0] != micro_batch_size
    hint = f"its learning rate is for them, so give --world-size {cards} where it runs on as many"
    return f"the file is named for {cards} cards{other if differs else ''}: {hint}" if (cards or 1) > 1 else None
