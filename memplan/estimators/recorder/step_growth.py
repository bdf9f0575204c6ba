"""What a step leaves allocated beyond what the step before it left."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from memplan.results import Component
from memplan.units import format_bytes

if TYPE_CHECKING:
    from memplan.estimators.recorder.recording import Recording

_STATE_GROWS = (
    "the optimizer's state still grew in the second step, the last that is traced: where it goes on growing, as the "
    "history of L-BFGS does, later steps hold more"
)
_GROWS = (
    "the second step, the last that is traced, kept more than it freed of what the first kept, most of it what "
    "{origin}: where steps go on keeping tensors, as lists of outputs or of losses do, later steps hold more"
)
_COMES_LATER = (
    "of parameters that get their first gradient after the two traced steps, as where layers are dropped at random, "
    "the optimizer's state is not counted: up to {size} more, where each of them gets one"
)
_SINGLE_VALUE_BYTES = 16  # at most; a loss that each of 100,000 steps keeps takes 50 MiB of the allocator's rounds


def growth_notes(recording: Recording, before: set[int], after: set[int], *, full_state: str) -> tuple[str, ...]:
    """Say if the optimizer's state grows from step to step, or what else the steps keep; single values are left out.

    Args:
        recording: the steps.
        before: blocks that the last step but one left.
        after: blocks that the last step left.
        full_state: what the optimizer's state holds in the end, as the end of a sentence.
    """
    of_state: Counter[_Origin] = Counter()
    of_others: Counter[_Origin] = Counter()
    for block in before ^ after:
        if recording.block_bytes[block] <= _SINGLE_VALUE_BYTES:
            continue
        grown = of_state if recording.components[block] is Component.OPTIMIZER_STATE else of_others
        origin = _Origin(recording.operators[block], recording.modules[block])
        grown[origin] += recording.block_bytes[block] if block in after else -recording.block_bytes[block]
    notes = (_STATE_GROWS + full_state,) if of_state.total() > 0 else ()
    if of_others.total() <= 0:
        return notes
    ((largest, _),) = of_others.most_common(1)
    return (*notes, _GROWS.format(origin=_named(recording, largest)))


def later_state_note(*, state_bytes: int, parameter_bytes: int, without_bytes: int) -> str:
    """Say what the optimizer's state may come to where further parameters get one after each step.

    Args:
        state_bytes: what it is.
        parameter_bytes: of the parameters that have one.
        without_bytes: of those that train and have none.
    """
    return _COMES_LATER.format(size=format_bytes(round(without_bytes * state_bytes / parameter_bytes)))


class _Origin(NamedTuple):
    operator: int
    module: int


def _named(recording: Recording, origin: _Origin) -> str:
    operator, module = list(recording.operator_names)[origin.operator], list(recording.module_names)[origin.module]
    return f"{operator} made in {module}" if module else f"{operator} made"
