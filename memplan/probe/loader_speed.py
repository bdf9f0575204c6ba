"""How fast a data loader makes batches, as long as nobody does anything with them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memplan.errors import WorkloadError
from memplan.results import LoaderSpeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_TIMED_S = 1.0


def time_loader(
    loader: Iterable[Any], micro_batch_size: int, *, clock: Callable[[], float] = time.perf_counter
) -> LoaderSpeed:
    """Return how fast a loader is in its first epoch.

    Workers that start together end their batches together: whole rounds of one batch of each are timed. The first round
    is waited for and not counted, because it takes the start of the workers, too.

    Args:
        loader: yields batches; ``num_workers`` says how many processes make them, a ``batch_size`` that they are full.
        micro_batch_size: samples of a full batch.
        clock: seconds.

    Raises:
        WorkloadError: it is a collection, or its epoch ends before the second round.
    """
    if isinstance(loader, Sequence | Mapping):
        raise WorkloadError(f"a {type(loader).__name__} is no data loader")
    workers = int(getattr(loader, "num_workers", 0))
    is_full = getattr(loader, "batch_size", micro_batch_size) is not None
    rounds = _rounds(iter(loader), max(1, workers))
    if next(rounds, None) is None:
        raise WorkloadError(f"it has not one batch for each of its {workers} workers" if workers else "it has no batch")
    started, samples, duration_s = clock(), 0, 0.0
    for batches in rounds:
        samples += sum(micro_batch_size if is_full else _samples_in(each, micro_batch_size) for each in batches)
        duration_s = clock() - started
        if duration_s >= _TIMED_S:
            break
    if not samples:
        raise WorkloadError(
            f"it has not two batches for each of its {workers} workers" if workers else "it has one batch"
        )
    return LoaderSpeed(samples_per_s=samples / duration_s, workers=workers)


def _rounds(batches: Iterator[Any], workers: int) -> Iterator[list[Any]]:
    while len(batches_of_round := list(itertools.islice(batches, workers))) == workers:
        yield batches_of_round


def _samples_in(batch: Any, usual: int) -> int:
    """Return how many samples a batch of a sampler's own size has, by the first tensor or list in it."""
    if isinstance(batch, Mapping):
        return _samples_in(next(iter(batch.values()), None), usual)
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else usual
    if isinstance(batch, list | tuple) and batch:
        return _samples_in(batch[0], len(batch))
    return usual
