"""What the settings of a data loader alone tell, and how to improve them; memplan measures no loading.

======================  ============================================================================================
setting                 is changed, where that is asked for
======================  ============================================================================================
workers                 down to the number of processors, beyond which torch's ``DataLoader`` warns too; down until
                        the batches that they hold take at most half of the host's memory; never up: how much of a
                        data set each of them holds is not known, and 0 is often meant
``prefetch_factor``     down for the same half of the host's memory, before workers are; never added
``persistent_workers``  on with workers, which are then started once and not every epoch; off without, where torch
                        refuses it
``pin_memory``          on for a card: only from pinned memory is a copy to it asynchronous
======================  ============================================================================================

From torch's ``DataLoader``: without workers, batches are made in the training process between two steps; each worker
holds ``prefetch_factor`` finished batches, 2 by default. Half of the host's memory is a judgement. Not counted: copies
of the data set in workers, and the loaders of other replicas on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.units import GIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEFAULT_PREFETCH_FACTOR = 2
_WORTH_SAYING_BYTES = GIB
_PARTS_OF_HOST = 2  # held batches take at most one of so many parts of its memory


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSurroundings:
    """Where a loader runs and what it makes.

    Args:
        on_cuda: whether the training runs on a card.
        cpu_count: processors that the training may use; None where it runs on another machine.
        batch_bytes: tensor bytes of one micro-batch of the recommended recipe; None where it is not known.
        host_bytes: main memory that the training may use in all; None where it runs on another machine.
    """

    on_cuda: bool
    cpu_count: int | None = None
    batch_bytes: int | None = None
    host_bytes: int | None = None


def better_settings(settings: LoaderSettings, around: LoaderSurroundings) -> LoaderSettings:
    """Return the settings with what the module's table changes; the same again where it has been applied."""
    changed = _held_in_memory(replace(settings, workers=_at_most(settings.workers, around.cpu_count)), around)
    if changed.workers or (changed.workers == 0 and changed.persistent_workers):
        changed = replace(changed, persistent_workers=changed.workers > 0)
    return replace(changed, pin_memory=True) if around.on_cuda else changed


def _at_most(workers: int | None, cpu_count: int | None) -> int | None:
    return workers if workers is None or cpu_count is None else min(workers, cpu_count)


def _held_in_memory(settings: LoaderSettings, around: LoaderSurroundings) -> LoaderSettings:
    """Prefetch less, and then make fewer workers, until the batches that they hold fit; one batch each is the least."""
    if not settings.workers or not around.batch_bytes or around.host_bytes is None:
        return settings
    room = around.host_bytes // _PARTS_OF_HOST // around.batch_bytes
    prefetch = settings.prefetch_factor
    if prefetch:
        prefetch = min(prefetch, max(1, room // settings.workers))
    workers = min(settings.workers, max(1, room // (prefetch or _DEFAULT_PREFETCH_FACTOR)))
    return replace(settings, workers=workers, prefetch_factor=prefetch)


def loader_remarks(settings: LoaderSettings, around: LoaderSurroundings) -> tuple[str, ...]:
    """Return what a user should know of a loader, one phrase each."""
    return tuple(_remarks(settings, around))


def _remarks(settings: LoaderSettings, around: LoaderSurroundings) -> Iterator[str]:
    workers, cpu_count, batch_bytes = settings.workers, around.cpu_count, around.batch_bytes
    if workers == 0:
        if settings.persistent_workers:
            yield "persistent_workers needs loader workers, and there are 0: torch refuses that"
        if settings.prefetch_factor:
            yield "prefetch_factor needs loader workers, and there are 0: torch refuses that"
        if around.on_cuda:
            yield "with 0 loader workers the card waits while each batch is made; memplan does not measure that"
    if workers and cpu_count is not None and workers > cpu_count:
        yield f"{workers} loader workers share {cpu_count} processors"
    if settings.pin_memory is False and around.on_cuda:
        yield "without pin_memory every copy of a batch to the card is waited for"
    held = (workers or 0) * (settings.prefetch_factor or _DEFAULT_PREFETCH_FACTOR)
    if batch_bytes is not None and held * batch_bytes >= _WORTH_SAYING_BYTES:
        each, total = format_bytes(batch_bytes), format_bytes(held * batch_bytes)
        yield f"{workers} loader workers hold up to {held} batches of {each}, {total} of host memory"
