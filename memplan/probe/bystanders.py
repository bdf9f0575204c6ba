"""Memory that a trial's process holds and its step has nothing to do with, such as a data set of the user's code.

Imports torch; child processes only. A bystander was there before the training was built, is no part of it, and no
operator of a step takes it. What code outside PyTorch's operators reads in the step, or another thread, is not seen.
"""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memplan.probe.compilation import has_compiled
from memplan.probe.known_blocks import has_own_storage, known_components, still_held, visible_storages
from memplan.probe.training_loop import run_evaluation, run_optimizer_step
from memplan.training.dense_parts import dense_parts
from memplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.multiprocessing.reductions import StorageWeakRef

    from memplan.probe.training_loop import TrainingState

_WORTH_A_STEP_BYTES = MIB  # constants of user code, such as the mean colour of images, are less


def bystanders(state: TrainingState, earlier: Mapping[int, StorageWeakRef]) -> frozenset[int]:
    """Return the addresses of storages that the step does without; where there may be some, run a step to find out.

    None is found once code was compiled: it does not run under a dispatch mode, and its kernels are no operators.

    Args:
        state: the training.
        earlier: what was there before it was built.
    """
    sizes = visible_storages(state.device.type)
    unknown = still_held(earlier) - known_components(state).keys()
    if sum(sizes.get(address, 0) for address in unknown) < _WORTH_A_STEP_BYTES or has_compiled():
        return frozenset()
    try:
        taken = _taken_by_step(state)
    except Exception:  # noqa: BLE001 - user code that fails under a dispatch mode only still has its peak
        traceback.print_exc()
        return frozenset()
    return (unknown - taken) & still_held(earlier)


def _taken_by_step(state: TrainingState) -> set[int]:
    state = _with_batch_of_evaluation(state)
    seen = _TakenStorages()
    with seen:
        run_optimizer_step(state)
        run_evaluation(state)
    return seen.addresses


def _with_batch_of_evaluation(state: TrainingState) -> TrainingState:
    """Have the batch made now, as the training's is, so that what only makes batches is not read in the step."""
    workload = state.workload
    if workload.evaluate is None or workload.evaluation_batch is None:
        return state
    made = workload.evaluation_batch(state.recipe.micro_batch_size)
    return replace(state, workload=replace(workload, evaluation_batch=lambda _: made))


class _TakenStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves dispatch modes untyped
    """Collects the addresses of all storages that operators take."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves dispatch modes untyped
        self.addresses: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator; subclasses with a dispatch of their own come first, and their operators are seen next."""
        subclasses = {kind for kind in types if not has_own_storage(kind)}
        for each in tree_leaves((args, kwargs)):
            for part in dense_parts(each) if isinstance(each, torch.Tensor) else ():
                if type(part) not in subclasses:
                    self.addresses.add(part.untyped_storage().data_ptr())
        return NotImplemented if subclasses else func(*args, **(kwargs or {}))
