"""What the hook inside a training script sees of PyTorch's data loaders, step by step: copied beside it.

PyTorch only, any Python that runs it. Which of the loaders the training's batches come from is not told here.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import weakref
from typing import Any


class LoaderUse:
    """What a step had of one loader.

    Args:
        number: tells loaders apart.
        facts: what the loader says of its batches; None for what it does not say.
    """

    def __init__(self, number: int, facts: dict[str, Any]) -> None:
        self.number, self.facts = number, facts
        self.begun = False
        self.fetched = 0
        self.has_earlier = False  # batches of an iterator before the one that began last
        self.first_at: float | None = None  # when the first batch since it began was there

    def told(self) -> dict[str, Any]:
        """Return it as the event of a step has it."""
        first_at = None if self.has_earlier else self.first_at
        since_first_s = None if first_at is None else time.perf_counter() - first_at
        seen = {"number": self.number, "begun": self.begun, "fetched": self.fetched, "since_first_s": since_first_s}
        return {**seen, **self.facts}


class LoaderWatch:
    """Follows the data loaders of a process, also from threads that fetch ahead.

    Args:
        tell: reports an event with its facts.
    """

    def __init__(self, tell: Any) -> None:
        self._tell = tell
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._uses: dict[int, LoaderUse] = {}

    def watch(self, module: Any) -> None:
        """Look at each iterator over batches; called once the loaders' module is loaded."""
        kind = module._BaseDataLoaderIter  # noqa: SLF001 - what all loaders' iterators are, under no other name
        for name in ("__init__", "_reset"):  # where workers stay, an iterator is used again
            setattr(kind, name, self._beginning(getattr(kind, name)))
        kind.__next__ = self._advancing(kind.__next__)

    def step_ended(self) -> list[dict[str, Any]]:
        """Return what the step had of each loader, and begin anew."""
        uses, self._uses = self._uses, {}
        return [each.told() for each in uses.values()]

    def _beginning(self, own: Any) -> Any:
        @functools.wraps(own)
        def begin_then_look(iterator: Any, loader: Any, *arguments: Any, **options: Any) -> None:
            with contextlib.suppress(Exception):
                _give_workers_one_folder(loader)
            own(iterator, loader, *arguments, **options)
            with contextlib.suppress(Exception):  # the script must not notice
                number = self._numbers.setdefault(loader, len(self._numbers))
                facts = facts_of(loader)
                iterator._use_seen_by_memplan = (number, facts)  # noqa: SLF001 - a mark of its own
                use = self._use(number, facts)
                use.begun, use.first_at, use.has_earlier = True, None, use.fetched > 0
                if facts["drops_last"] and not facts["batches"]:
                    self._tell("short", asked=facts["asked"], available=facts["available"])

        return begin_then_look

    def _advancing(self, own: Any) -> Any:
        @functools.wraps(own)
        def advance_then_note(iterator: Any) -> Any:
            batch = own(iterator)
            known = getattr(iterator, "_use_seen_by_memplan", None)
            if known is not None:
                use = self._use(*known)
                use.fetched += 1
                if use.begun and use.first_at is None:
                    use.first_at = time.perf_counter()
            return batch

        return advance_then_note

    def _use(self, number: int, facts: dict[str, Any]) -> LoaderUse:
        return self._uses.setdefault(number, LoaderUse(number, facts))


def _give_workers_one_folder(loader: Any) -> None:
    """Make the folder of ``multiprocessing`` here, which workers have from here then, so that it can be told."""
    if loader.num_workers:
        sys.modules["multiprocessing.util"].get_temp_dir()  # PyTorch's loaders have it loaded


def facts_of(loader: Any) -> dict[str, Any]:
    """Return the samples of a full batch and those that there are, and what becomes of the last batch of fewer."""
    with contextlib.suppress(Exception):  # one that puts batches together by other means
        batches = loader.batch_sampler
        given = getattr(batches, "batch_sampler", batches)  # accelerate wraps it for one of several processes
        is_part_of_each = getattr(batches, "split_batches", True)
        return {
            "asked": int(batches.batch_size),
            "available": len(given.sampler) // (1 if is_part_of_each else batches.num_processes),
            "drops_last": bool(batches.drop_last or getattr(batches, "even_batches", False)),  # filled up by others
            "batches": len(batches),
        }
    return dict.fromkeys(("asked", "available", "drops_last", "batches"))
