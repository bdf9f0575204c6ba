"""``torch.cuda.empty_cache`` as an operator, so that the dispatch mode that records a step sees when it is called."""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("memplan", "DEF")  # type: ignore[no-untyped-call]  # untyped in torch
_LIBRARY.define("empty_cache() -> ()")  # type: ignore[no-untyped-call]  # as above
_LIBRARY.impl("empty_cache", lambda: None, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]  # as above

EMPTY_CACHE = torch.ops.memplan.empty_cache.default


def empty_cache() -> None:
    """Return what is cached to the driver of the absent card."""
    EMPTY_CACHE()
