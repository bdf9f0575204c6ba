"""How the hook inside a training script notices that its data are fewer than one of its batches: copied beside it.

PyTorch only, any Python that runs it. Batches are those of PyTorch's own ``DataLoader``, on which frameworks build.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any


class LoaderWatch:
    """Notices data loaders whose data do not fill one batch.

    Args:
        tell: reports an event with its facts.
    """

    def __init__(self, tell: Any) -> None:
        self._tell = tell
        self._of_latest_batch: dict[str, int] | None = None
        self._told: list[object] = []

    def watch(self, module: Any) -> None:
        """Look at each iterator over batches; called once the loaders' module is loaded."""
        kind = module._BaseDataLoaderIter  # noqa: SLF001 - what all loaders' iterators are, under no other name
        making, advancing = kind.__init__, kind.__next__

        @functools.wraps(making)
        def make_then_look(iterator: Any, loader: Any, *arguments: Any, **options: Any) -> None:
            making(iterator, loader, *arguments, **options)
            iterator._shortage_seen_by_memplan = None  # noqa: SLF001 - a mark of its own
            with contextlib.suppress(Exception):  # the script must not notice
                shortage = shortage_of(loader)
                iterator._shortage_seen_by_memplan = shortage  # noqa: SLF001 - likewise
                if shortage is not None and loader.batch_sampler.drop_last:
                    self._tell_once(shortage, are_trained=False)

        @functools.wraps(advancing)
        def advance_then_note(iterator: Any) -> Any:
            batch = advancing(iterator)
            self._of_latest_batch = getattr(iterator, "_shortage_seen_by_memplan", None)
            return batch

        kind.__init__, kind.__next__ = make_then_look, advance_then_note

    def step_ended(self) -> None:
        """Report what the loader of the latest batch lacks, if anything: a step was trained on it."""
        if self._of_latest_batch is not None:
            self._tell_once(self._of_latest_batch, are_trained=True)

    def _tell_once(self, shortage: dict[str, int], *, are_trained: bool) -> None:
        if (shortage, are_trained) not in self._told:
            self._told.append((shortage, are_trained))
            self._tell("short", **shortage, are_trained=are_trained)


def shortage_of(loader: Any) -> dict[str, int] | None:
    """Return the samples of a full batch and those that there are; None where they suffice, or cannot be counted."""
    batches = loader.batch_sampler  # accelerate wraps the one that was given
    sampler = getattr(batches, "batch_sampler", batches).sampler
    asked, available = batches.batch_size, len(sampler)
    return {"asked": asked, "available": available} if available < asked else None
