"""Which storages are alive: each is a block from the operator that made it until its last owner is gone."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from memplan.estimators.fake_tensors.dense_parts import dense_parts

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from memplan.estimators.recorder.recording import Recording
    from memplan.estimators.step_trace import Category


class StorageLedger:
    """Turns the life of tensor storages into events of a recording.

    A storage's Python object lives exactly as long as the storage itself, saved variables of the autograd graph
    included, so a weak reference to it tells when the memory is given back.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._blocks: dict[int, int] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._live: set[int] = set()
        self._closed = False

    def block_of(self, tensor: torch.Tensor) -> int | None:
        """Return the block that holds a dense tensor; None where it is unknown or empty."""
        return self._blocks.get(id(tensor.untyped_storage()))

    def blocks_of(self, tensors: Iterable[torch.Tensor]) -> set[int]:
        """Return the blocks that hold these tensors."""
        parts = (part for tensor in tensors for part in dense_parts(tensor))
        return {block for part in parts if (block := self.block_of(part)) is not None}

    def track(self, tensor: torch.Tensor, category: Category, *, module: str, operator: str) -> None:
        """Record each storage of the tensor as a new block unless it is known."""
        for part in dense_parts(tensor):
            storage = part.untyped_storage()
            if id(storage) not in self._blocks and storage.nbytes():
                block = self._recording.allocate(storage.nbytes(), category, module=module, operator=operator)
                self._follow(storage, block)

    def _follow(self, storage: torch.UntypedStorage, block: int) -> None:
        identity = id(storage)
        self._blocks[identity] = block
        self._live.add(block)
        self._references[identity] = weakref.ref(storage, lambda _: self._gone(identity))

    def track_all(self, tensors: Iterable[torch.Tensor], category: Category, *, module: str, operator: str) -> None:
        """Record every storage among these tensors that is not known."""
        for tensor in tensors:
            self.track(tensor, category, module=module, operator=operator)

    def reuse_block(self, heir: torch.UntypedStorage, donor: int) -> None:
        """Let the storage made last live on in a block that was freed right after it was made.

        That is what an in-place operator does where tracing ran the out-of-place one.
        """
        identity = id(heir)
        block = self._blocks[identity]
        self._recording.replace_block(block, donor)
        self._live.discard(block)
        self._live.add(donor)
        self._blocks[identity] = donor

    def is_live(self, block: int) -> bool:
        """Whether the block has not been given back."""
        return block in self._live

    def live_blocks(self) -> set[int]:
        """Return the blocks that are alive now."""
        return set(self._live)

    def close(self) -> None:
        """Stop recording: what is freed from now on belongs to the end of the process, not to a step."""
        self._closed = True

    def _gone(self, identity: int) -> None:
        block = self._blocks.pop(identity)
        del self._references[identity]
        self._live.discard(block)
        if not self._closed:
            self._recording.free(block)
