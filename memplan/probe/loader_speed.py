"""How fast a data loader makes batches, as long as nobody does anything with them."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from memplan.results import LoaderSpeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TIMED_S = 1.0


def time_loader(
    loader: Iterable[object], micro_batch_size: int, *, clock: Callable[[], float] = time.perf_counter
) -> LoaderSpeed | None:
    """Return how fast a loader is in its first epoch; None if that ends before anything could be timed.

    The first batch of each worker is waited for and not counted: it takes the start of the worker, too, and what the
    workers have made by then is there at once.

    Args:
        loader: yields batches, each of which counts as full; ``num_workers`` says how many processes make them.
        micro_batch_size: samples of a batch.
        clock: seconds.
    """
    workers = int(getattr(loader, "num_workers", 0))
    batches = iter(loader)
    if sum(1 for _ in itertools.islice(batches, max(1, workers))) < max(1, workers):
        return None
    started, made = clock(), 0
    for _ in batches:
        made += 1
        if clock() - started >= _TIMED_S:
            break
    if not made:
        return None
    return LoaderSpeed(samples_per_s=made * micro_batch_size / (clock() - started), workers=workers)
