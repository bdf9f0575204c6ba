"""What can be said of a data loader from its settings alone; memplan measures steps, and no loading.

Rules from torch's ``DataLoader``: without workers, batches are made in the training process between two steps, and
``persistent_workers`` and ``prefetch_factor`` are refused; each worker holds ``prefetch_factor`` finished batches, 2 by
default; only from pinned memory is a copy to the card asynchronous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_PREFETCH_FACTOR = 2
_WORTH_SAYING_BYTES = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """Settings of a data loader; None where the config leaves one to the program's default.

    Args:
        workers: processes that make batches.
        pin_memory: whether batches are copied to pinned memory.
        prefetch_factor: finished batches that each worker holds.
        persistent_workers: whether workers outlive an epoch.
    """

    workers: int | None = None
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None


def loader_remarks(
    settings: LoaderSettings, *, on_cuda: bool, cpu_count: int | None, batch_bytes: int | None
) -> tuple[str, ...]:
    """Return what a user should know of a loader, one sentence each.

    Args:
        settings: what the config says.
        on_cuda: whether the training runs on a card.
        cpu_count: processors that the training may use; None where it runs on another machine.
        batch_bytes: tensor bytes of one micro-batch of the recommended recipe; None where it is not known.
    """
    return tuple(_remarks(settings, on_cuda=on_cuda, cpu_count=cpu_count, batch_bytes=batch_bytes))


def _remarks(
    settings: LoaderSettings, *, on_cuda: bool, cpu_count: int | None, batch_bytes: int | None
) -> Iterator[str]:
    workers = settings.workers
    if workers == 0:
        if settings.persistent_workers:
            yield "persistent_workers needs loader workers, and there are 0: torch refuses that"
        if settings.prefetch_factor:
            yield "prefetch_factor needs loader workers, and there are 0: torch refuses that"
        if on_cuda:
            yield "with 0 loader workers the card waits while each batch is made; memplan does not measure that"
    if workers and cpu_count is not None and workers > cpu_count:
        yield f"{workers} loader workers share {cpu_count} processors"
    if settings.pin_memory is False and on_cuda:
        yield "without pin_memory every copy of a batch to the card is waited for"
    held = (workers or 0) * (settings.prefetch_factor or DEFAULT_PREFETCH_FACTOR)
    if batch_bytes is not None and held * batch_bytes >= _WORTH_SAYING_BYTES:
        each, total = format_bytes(batch_bytes), format_bytes(held * batch_bytes)
        yield f"{workers} loader workers hold up to {held} batches of {each}, {total} of host memory"
