"""What the settings of a data loader and its speed tell, and how to improve the settings.

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
holds ``prefetch_factor`` finished batches, 2 by default. Half of the host's memory is a judgement, and so is that a
tenth of the speed is worth a word. Not counted: copies of the data set in workers, the loaders of other replicas on the
machine, and that on the CPU workers take time from the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.units import GIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.results import LoaderSpeed

_DEFAULT_PREFETCH_FACTOR = 2
_WORTH_SAYING_BYTES = GIB
_PARTS_OF_HOST = 2  # held batches take at most one of so many parts of its memory
_WORTH_SAYING_SHARE = 0.9  # of the steps' speed, where a loader leaves no more than that


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
        speed: of the loader by itself, as a trial timed it; None where none did.
        trained_samples_per_s: speed of the recommended recipe's steps on a batch that is there; None without a trial.
    """

    on_cuda: bool
    cpu_count: int | None = None
    batch_bytes: int | None = None
    host_bytes: int | None = None
    speed: LoaderSpeed | None = None
    trained_samples_per_s: float | None = None


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
        if around.on_cuda and around.speed is None:
            yield "with 0 loader workers the card waits while each batch is made; only a workload's own loader is timed"
    if workers and cpu_count is not None and workers > cpu_count:
        yield f"{workers} loader workers share {cpu_count} processors"
    if settings.pin_memory is False and around.on_cuda:
        yield "without pin_memory every copy of a batch to the card is waited for"
    held = (workers or 0) * (settings.prefetch_factor or _DEFAULT_PREFETCH_FACTOR)
    if batch_bytes is not None and held * batch_bytes >= _WORTH_SAYING_BYTES:
        each, total = format_bytes(batch_bytes), format_bytes(held * batch_bytes)
        yield f"{workers} loader workers hold up to {held} batches of {each}, {total} of host memory"
    if around.speed is not None and around.trained_samples_per_s is not None:
        yield from _waiting(around.speed, around.trained_samples_per_s)


def _waiting(loader: LoaderSpeed, trained_per_s: float) -> Iterator[str]:
    """Say what is left of the speed of steps that wait for their batches, if it is much less."""
    made_per_s = loader.samples_per_s
    if loader.workers and made_per_s <= _WORTH_SAYING_SHARE * trained_per_s:
        yield (
            f"the data loader makes {made_per_s:.1f} samples/s {loader.workers_text}: "
            f"steps that could take {trained_per_s:.1f} wait for it, as do those of faster recipes"
        )
    together_per_s = 1 / (1 / made_per_s + 1 / trained_per_s)
    if not loader.workers and together_per_s <= _WORTH_SAYING_SHARE * trained_per_s:
        yield (
            f"without loader workers each batch is made between steps: {made_per_s:.1f} samples/s of the loader and "
            f"{trained_per_s:.1f} of the steps come to {together_per_s:.1f}"
        )
