"""What the hook inside a training script learns of its batches, by PyTorch's own ``DataLoader``: copied beside it.

PyTorch only, any Python that runs it. Frameworks build on that loader, some of which fetch one batch ahead.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any


class BatchSource:
    """What one iterator over batches has to offer; whatever the loader does not say is None.

    Args:
        asked: samples of a full batch.
        available: samples that there are.
        drops_last: whether a last batch of fewer is dropped.
        batches: how many there are.
    """

    def __init__(
        self,
        asked: int | None = None,
        available: int | None = None,
        drops_last: bool | None = None,
        batches: int | None = None,
    ) -> None:
        self.asked, self.available, self.drops_last, self.batches = asked, available, drops_last, batches
        self.fetched = 0
        self.fetched_ahead: int | None = None  # unknown until a step was taken

    @property
    def is_short(self) -> bool:
        """Whether the samples do not fill one batch."""
        return self.asked is not None and self.available is not None and self.available < self.asked

    @property
    def ends_partially(self) -> bool | None:
        """Whether the last batch has fewer samples than the others."""
        if self.asked is None or self.available is None:
            return None
        return not self.drops_last and self.available % self.asked != 0


class LoaderWatch:
    """Follows the data loaders of a process.

    Args:
        tell: reports an event with its facts.
    """

    def __init__(self, tell: Any) -> None:
        self._tell = tell
        self._latest: BatchSource | None = None
        self._fetched = 0
        self._is_begun = False
        self._told: list[object] = []

    def watch(self, module: Any) -> None:
        """Look at each iterator over batches; called once the loaders' module is loaded."""
        kind = module._BaseDataLoaderIter  # noqa: SLF001 - what all loaders' iterators are, under no other name
        beginnings = ("__init__", "_reset")  # where workers stay, an iterator is used again
        for name in beginnings:
            setattr(kind, name, self._beginning(getattr(kind, name)))
        kind.__next__ = self._advancing(kind.__next__)

    def _beginning(self, own: Any) -> Any:
        @functools.wraps(own)
        def begin_then_look(iterator: Any, loader: Any, *arguments: Any, **options: Any) -> None:
            own(iterator, loader, *arguments, **options)
            self._is_begun = True
            source = iterator._seen_by_memplan = source_of(loader)  # noqa: SLF001 - a mark of its own
            if source.is_short and source.drops_last:
                self._tell_once(source, are_trained=False)

        return begin_then_look

    def _advancing(self, own: Any) -> Any:
        @functools.wraps(own)
        def advance_then_note(iterator: Any) -> Any:
            batch = own(iterator)
            self._latest = source = getattr(iterator, "_seen_by_memplan", None) or BatchSource()
            source.fetched += 1
            self._fetched += 1
            return batch

        return advance_then_note

    def step_ended(self, passes: int) -> dict[str, bool | None]:
        """Return whether an iterator began since the step before, and whether this one's batch was a partial one.

        Args:
            passes: backward passes of the step, each of which takes a batch.
        """
        source, is_partial = self._latest, None
        if source is not None:
            if source.is_short:
                self._tell_once(source, are_trained=True)
            if source.fetched_ahead is None:
                source.fetched_ahead = max(source.fetched - passes, 0)
            is_last = not self._fetched if source.fetched_ahead else source.fetched == source.batches
            is_partial = source.ends_partially and is_last
        told = {"begins_epoch": self._is_begun, "is_partial": is_partial}
        self._is_begun, self._fetched = False, 0
        return told

    def _tell_once(self, source: BatchSource, *, are_trained: bool) -> None:
        facts = {"asked": source.asked, "available": source.available, "are_trained": are_trained}
        if facts not in self._told:
            self._told.append(facts)
            with contextlib.suppress(OSError):  # the script must not notice
                self._tell("short", **facts)


def source_of(loader: Any) -> BatchSource:
    """Return what a data loader says of its batches; nothing of one that puts them together by other means."""
    with contextlib.suppress(Exception):  # the script must not notice
        batches = loader.batch_sampler  # accelerate wraps the one that was given
        sampler = getattr(batches, "batch_sampler", batches).sampler
        return BatchSource(batches.batch_size, len(sampler), batches.drop_last, len(batches))
    return BatchSource()
