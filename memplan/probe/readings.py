"""What a trial needs from the device it runs on; one implementation for the CPU, one for CUDA."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from memplan.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from memplan.probe.training_loop import TrainingState
    from memplan.results import BreakdownBytes

# Of a budget. A process that fails or is killed with this much of it in use is presumed to have needed more.
NEAR_BUDGET_SHARE = 0.9
_FEWEST_GROWING_STEPS = 2
_STEPS_OF_A_TRAINING = 100_000  # in which what grows more slowly, such as a list of losses, does no harm


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePeaks:
    """Peaks of one trial; the fields mean what they mean in :class:`memplan.results.Measurement`.

    Before the peak is attributed, ``breakdown`` has what is no context and no allocator slack as temporaries, and
    on the CPU ``allocated_bytes`` is the whole of the resident peak beyond the context.
    """

    allocated_bytes: int
    reserved_bytes: int | None
    process_bytes: int
    device_bytes: int
    breakdown: BreakdownBytes
    alloc_retries: int
    notes: tuple[str, ...] = ()
    has_own_context: bool = True


def search_note(held_bytes: int) -> str:
    """Say what the first step held for cuDNN's search for algorithms, which is left out of the peaks."""
    return (
        f"cuDNN's search for algorithms (benchmark mode) held up to {format_bytes(held_bytes)} in the first step and "
        "gave it back; where it has more room than in a trial it may choose others"
    )


def growth_note(held_bytes: Sequence[int], *, samples: int, budget_bytes: int) -> str | None:
    """Say that every step keeps memory, where that would fill the budget within a training; None where it would not.

    Args:
        held_bytes: tensor bytes after each of several steps on the same batch.
        samples: of one step.
        budget_bytes: what the training may use.
    """
    kept = [after - before for before, after in itertools.pairwise(held_bytes)]
    if len(kept) < _FEWEST_GROWING_STEPS or min(kept) * _STEPS_OF_A_TRAINING < budget_bytes:
        return None
    return (
        f"each step keeps {format_bytes(min(kept) // samples)} per sample that the next ones do not free: the training "
        "runs out of memory in time; look for tensors that outlive their step, such as outputs kept in a list"
    )


class DeviceReadings(Protocol):
    """Limits the trial's process to its budget and reads its peaks; called in the order of the methods."""

    def start(self) -> torch.device:
        """Initialise the device and cap the process at the budget; return where to put the model."""

    def before_building(self) -> None:
        """Note what is taken before the model is built."""

    def first_step_ended(self) -> None:
        """Leave out of the peaks what a first step takes and gives back, and no later one takes."""

    def synchronize(self) -> None:
        """Wait until the device has finished what it was given."""

    def held_bytes(self) -> int:
        """Return the bytes of tensors that are held now, between two steps."""

    def read_peaks(self) -> DevicePeaks:
        """Read the peaks of the steps so far, before attributing disturbs them."""

    def attribute(self, state: TrainingState) -> DevicePeaks:
        """Run one more optimizer step, find out what its peak consists of, and return the peaks with that."""

    def peak_of_step(self, state: TrainingState) -> int:
        """Run one more optimizer step and return its own allocated peak in bytes."""

    def release_limits(self) -> None:
        """Lift the cap, so that a failure can be reported."""

    def memory_is_full(self) -> bool:
        """Whether the process has come near its budget."""
