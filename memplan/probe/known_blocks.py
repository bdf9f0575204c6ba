"""The addresses at which a training step keeps weights, gradients, optimizer state and the batch.

Imports torch; child processes only. A block is known by the address of its storage, so views and tied weights count
once.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from memplan.probe.attribution import ForwardSpan, KnownBlocks
from memplan.probe.training_loop import StepMarks
from memplan.results import Component
from memplan.training.batches import tensors_in
from memplan.training.deepspeed_engine import parts_of
from memplan.training.dense_parts import dense_parts
from memplan.training.optimizer_states import optimizer_states, optimizers_of, stepped_copies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from memplan.probe.training_loop import TrainingState

_MICRO_STEPS = 2

_tensors_set_aside: list[weakref.ref[torch.Tensor]] = []


def has_own_storage(kind: type[torch.Tensor]) -> bool:
    """Whether a type's tensors have storages as PyTorch's have: subclasses do that leave operators to PyTorch."""
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def known_components(state: TrainingState) -> dict[int, Component]:
    """Return what is where now, by address; a moving average of the weights counts as optimizer state."""
    parameters = state.parameters()
    optimizers = optimizers_of(state.optimizer, parameters)
    of_optimizer = [value for _, kept in optimizer_states(optimizers) for value in tensors_in(kept)]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return {
        **_addressed(tensors_in(state.batch), Component.INPUTS),
        **_addressed([*of_optimizer, *stepped_copies(optimizers, parameters)], Component.OPTIMIZER_STATE),
        **_addressed(state.moving_average.values(), Component.OPTIMIZER_STATE),
        **_addressed([*gradients, *state.buckets], Component.GRADIENTS),
        **_addressed(state.model.buffers(), Component.BUFFERS),
        **_addressed((part for each in parameters for part in parts_of(each)), Component.PARAMETERS),
    }


def visible_storages(device_type: str) -> dict[int, int]:
    """Sizes in bytes, by address, of every storage on a kind of device that a Python object holds."""
    return {storage.data_ptr(): storage.nbytes() for storage in _held_storages(device_type)}


def storage_references(device_type: str) -> dict[int, StorageWeakRef]:
    """Weak references, by address, to the same storages: an address alone may be another block's later."""
    return {
        storage.data_ptr(): StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for storage in _held_storages(device_type)
    }


def still_held(references: Mapping[int, StorageWeakRef]) -> frozenset[int]:
    """Return the addresses of those storages that have not been freed since."""
    return frozenset(
        address
        for address, reference in references.items()
        if not reference.expired()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    )


def set_objects_aside() -> None:
    """Spare later searches for tensors all objects that there are now, such as imported modules; tensors stay in sight.

    A search goes through everything that the garbage collector would, and a process that has imported torch and a
    framework has half a million such objects, which take longer than a small step. None of them is collected any more.
    """
    gc.collect()
    _tensors_set_aside.extend(map(weakref.ref, _tensors(gc.get_objects())))
    gc.freeze()


def _held_storages(device_type: str) -> list[torch.UntypedStorage]:
    aside = (reference() for reference in _tensors_set_aside)
    tensors = [*_tensors(gc.get_objects()), *(each for each in aside if each is not None)]
    with _without_code_of_subclasses():
        held = [each for each in tensors if each.device.type == device_type]
    storages = (storage for each in held for storage in _storages(each))
    return [each for each in storages if each.data_ptr() and each.nbytes()]


def _tensors(objects: Iterable[Any]) -> list[torch.Tensor]:
    # By the id of type(): isinstance() and the hash of a type may run user code, which resolves lazy proxies, and
    # issubclass() takes longest, of a million objects that a process may have.
    kinds = set(map(id, _with_subclasses(torch.Tensor)))
    return [each for each in objects if id(type(each)) in kinds]


def _without_code_of_subclasses() -> AbstractContextManager[None]:
    return torch._C.DisableTorchFunctionSubclass()  # noqa: SLF001 - public under no other name


def _with_subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _with_subclasses(each)


def _addressed(tensors: Iterable[torch.Tensor], component: Component) -> dict[int, Component]:
    return {storage.data_ptr(): component for tensor in tensors for storage in _storages(tensor)}


def _storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """The storages of a tensor, or of what it wraps; none of a subclass that does not tell what it is made of."""
    with _without_code_of_subclasses():
        return [part.untyped_storage() for part in dense_parts(tensor) if has_own_storage(type(part))]


def shortened(state: TrainingState) -> TrainingState:
    """Return the same training with two micro-steps at most: the later ones repeat the second's allocations."""
    recipe = state.recipe
    if state.engine is not None:  # which steps after as many passes as it was made for
        return state
    return replace(state, recipe=replace(recipe, accumulation_steps=min(recipe.accumulation_steps, _MICRO_STEPS)))


class StepSights:
    """Sees what is where between the phases of a step.

    Args:
        state: the training whose step is followed.
        leave_mark: called with the number of each look, from 0, to leave a trace of when that was.
    """

    def __init__(self, state: TrainingState, leave_mark: Callable[[int], None]) -> None:
        self._state = state
        self._leave_mark = leave_mark
        self._sights: list[dict[int, Component]] = []
        self._forwards: list[tuple[int, int]] = []

    def as_marks(self) -> StepMarks:
        """Return the callbacks that :func:`run_optimizer_step` and :func:`run_evaluation` take."""
        return StepMarks(
            forward_starts=lambda: self._look({}),
            forward_ends=self._forward_ends,
            backward_ended=lambda: self._look(known_components(self._state)),
            evaluation_starts=lambda batch: self._look(_addressed(tensors_in(batch), Component.INPUTS)),
        )

    def known(self, positions: Mapping[int, int]) -> list[KnownBlocks]:
        """Return what was seen, at the positions at which the marks were found."""
        return [
            KnownBlocks(position=positions[number], components=seen) for number, seen in enumerate(self._sights) if seen
        ]

    def forwards(self, positions: Mapping[int, int]) -> list[ForwardSpan]:
        """Return where forward passes started and ended."""
        return [ForwardSpan(start=positions[start], end=positions[end]) for start, end in self._forwards]

    def _forward_ends(self, batch: Any) -> None:
        gathered = _addressed(self._state.parameters(), Component.PARAMETERS)  # of a sharded model, for this pass
        self._look({**_addressed(tensors_in(batch), Component.INPUTS), **gathered})
        self._forwards.append((len(self._sights) - 2, len(self._sights) - 1))

    def _look(self, components: dict[int, Component]) -> None:
        self._leave_mark(len(self._sights))
        self._sights.append(components)
