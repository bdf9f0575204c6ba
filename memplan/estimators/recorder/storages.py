"""Lifetimes of tensor storages, recorded as blocks."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from memplan.estimators.fake_tensors.replaced import replaced
from memplan.results import Component
from memplan.training.dense_parts import dense_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memplan.estimators.recorder.recording import Recording


class StorageLedger:
    """Records a block for each tensor storage, from its first appearance until it is freed.

    A storage's Python object lives exactly as long as the storage, also in saved variables of the autograd graph, so
    that the callback of a weak reference marks the free.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._blocks: dict[int, int] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._live: set[int] = set()
        self._emptied: dict[int, int] = {}  # the last block of each storage that was resized to nothing
        self._closed = False

    def block_of(self, tensor: torch.Tensor) -> int | None:
        """Return the block that holds a dense tensor; None if it is not tracked or empty."""
        return self._blocks.get(id(tensor.untyped_storage()))

    def blocks_of(self, tensors: Iterable[torch.Tensor]) -> set[int]:
        """Return the blocks that hold these tensors."""
        parts = (part for tensor in tensors for part in dense_parts(tensor))
        return {block for part in parts if (block := self.block_of(part)) is not None}

    def track(
        self, tensor: torch.Tensor, component: Component, *, module: str, operator: str, before_steps: bool = False
    ) -> None:
        """Record each storage of the tensor as a new block, unless it is tracked already.

        Args:
            tensor: the tensor.
            component: what it is.
            module: path of the running module.
            operator: name of the operator that made it.
            before_steps: whether it has been there since before the first step.
        """
        for part in dense_parts(tensor):
            storage = part.untyped_storage()
            if id(storage) not in self._blocks and storage.nbytes():
                block = self._recording.allocate(
                    storage.nbytes(), component, module=module, operator=operator, before_steps=before_steps
                )
                self._add(storage, block)

    def _add(self, storage: torch.UntypedStorage, block: int) -> None:
        identity = id(storage)
        self._blocks[identity] = block
        self._live.add(block)
        self._references[identity] = weakref.ref(storage, lambda _: self._freed(identity))

    def track_all(self, tensors: Iterable[torch.Tensor], component: Component, *, module: str, operator: str) -> None:
        """Track the storages of several tensors."""
        for tensor in tensors:
            self.track(tensor, component, module=module, operator=operator)

    @contextmanager
    def following_resizes(self) -> Iterator[None]:
        """Record what ``UntypedStorage.resize_`` frees and makes while the context is open."""
        original = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size_bytes: int) -> Any:
            self.resize(storage, size_bytes)
            return original(storage, size_bytes)

        with replaced(torch.UntypedStorage, "resize_", resize_):
            yield

    def resize(self, storage: torch.UntypedStorage, size_bytes: int) -> None:
        """Record that a storage which was tracked is freed, and made again in another size unless that is 0.

        What is made again from nothing holds parameters: FSDP gathers them so.
        """
        identity = id(storage)
        was_empty = identity in self._emptied
        block = self._blocks.pop(identity, self._emptied.pop(identity, None))
        if block is None:
            return
        if block in self._live:
            self._live.discard(block)
            self._recording.free(block)
        if size_bytes:
            self._blocks[identity] = again = self._recording.allocate_again(block, size_bytes)
            self._live.add(again)
            if was_empty:
                self._recording.components[again] = Component.PARAMETERS
        else:
            self._emptied[identity] = block

    def free_on(self, stream: int) -> None:
        """Free all that was made on a stream, though tensors may still hold it."""
        for identity, block in [*self._blocks.items()]:
            if self._recording.streams[block] == stream:
                del self._blocks[identity]
                self._live.discard(block)
                self._recording.free(block)

    def holds_any_on(self, stream: int) -> bool:
        """Whether anything that was made on a stream is not freed."""
        return any(self._recording.streams[block] == stream for block in self._live)

    def reuse_block(self, storage: torch.UntypedStorage, freed_block: int) -> None:
        """Move the last tracked storage into a block that was freed right after it was made.

        This turns a traced out-of-place operator into the in-place one that runs without tracing.
        """
        identity = id(storage)
        block = self._blocks[identity]
        self._recording.replace_block(block, freed_block)
        self._live.discard(block)
        self._live.add(freed_block)
        self._blocks[identity] = freed_block

    def is_live(self, block: int) -> bool:
        """Whether the block is not freed."""
        return block in self._live

    def live_blocks(self) -> set[int]:
        """Return the blocks that are allocated now."""
        return set(self._live)

    def close(self) -> None:
        """Stop recording: later frees are not part of a step."""
        self._closed = True

    def _freed(self, identity: int) -> None:
        block = self._blocks.pop(identity, None)
        self._emptied.pop(identity, None)
        del self._references[identity]
        if block is None:
            return
        self._live.discard(block)
        if not self._closed:
            self._recording.free(block)
