"""Data loaders like another, with batches of another size."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset


def resized_loader(loader: DataLoader[Any], batch_size: int) -> DataLoader[Any] | None:
    """Return a loader that is like another but for the size of its batches, and for workers that outlive an epoch.

    Args:
        loader: the other one; not changed.
        batch_size: samples of a batch.

    Returns:
        The loader; None where the other one's batches come from its data set or from a sampler of their own.
    """
    if type(loader.batch_sampler) is not BatchSampler:
        return None
    return DataLoader(
        loader.dataset,
        batch_size=batch_size,
        sampler=None if isinstance(loader.dataset, IterableDataset) else loader.sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
    )
