"""Readings of a trial on a CUDA card: the allocator's statistics, and the driver's figures for process and card.

Imports torch; child processes only. Peaks are taken over the whole trial, first steps and library set-up included,
because a real run passes through them too. *Process* is the reserved peak plus the context, which is what the driver
charges this process beyond the allocator's segments (NVML), measured once all libraries are loaded.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import torch

from memplan.devices.driver import device_used_bytes
from memplan.errors import DeviceError
from memplan.probe.attribution import AttributedPeak, MemoryEvent, ResidentBlock, attribute_peak, unattributed_peak
from memplan.probe.card_use import CardUse
from memplan.probe.failure_texts import memory_kind_of_text
from memplan.probe.known_blocks import StepSights, known_components, shortened, visible_storages
from memplan.probe.readings import NEAR_BUDGET_SHARE, DevicePeaks, search_note
from memplan.probe.training_loop import TrainingState, run_evaluation, run_optimizer_step, zero_gradients
from memplan.results import BreakdownBytes, Component

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan.devices.cards import DeviceSpec


class CudaReadings:
    """Caps the process's allocator so that the card's use stays within the budget, and reads its peaks.

    The cap covers PyTorch's allocator alone, so context and neighbours are taken off the budget for it. Libraries that
    are loaded later make the context grow; that shows in the readings and is judged by whoever asked for the trial.

    Args:
        device: a card that is present.
        budget_bytes: what all processes together may use of it.
    """

    def __init__(self, device: DeviceSpec, budget_bytes: int) -> None:
        self._index = device.live_index or 0
        self._usual_context_bytes = device.context_bytes
        self._budget_bytes = budget_bytes
        self._others_bytes = 0
        self._cap_bytes: int | None = None
        self._allocated_bytes = 0
        self._reserved_bytes = 0
        self._process_bytes = 0
        self._alloc_retries = 0
        self._searched_bytes = 0
        self._card = CardUse(self._index)

    def start(self) -> torch.device:
        """Measure the neighbours, make the context, and cap the allocator.

        Raises:
            DeviceError: this PyTorch cannot use the card.
        """
        before_bytes = device_used_bytes(self._index).read_bytes
        device = initialised_card(self._index)
        _take_a_toy_step(device)
        if before_bytes is None:
            before_bytes = max(self._card.used_bytes() - self._usual_context_bytes, 0)
        self._others_bytes = before_bytes
        self._cap_bytes = max(self._budget_bytes - before_bytes - self._card.context_bytes(before_bytes), 0)
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(self._cap_bytes / total_bytes, 1.0), device)
        return device

    def before_building(self) -> None:
        """Release what the toy step left, cuBLAS workspaces included, and reset the statistics."""
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - a training without a matrix product never has them
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._index)

    def first_step_ended(self) -> None:
        """Exclude what cuDNN took in its search for algorithms (benchmark mode).

        For each new shape PyTorch takes one block as large as the largest workspace that fits on the card,
        whatever the cap, tries half as much where that fails, and empties its cache afterwards
        (``aten/src/ATen/native/cudnn/Conv_v8.cpp``): neither peak nor retries say what the training needs.
        """
        if torch.backends.cudnn.benchmark:
            self.synchronize()
            self._searched_bytes = max(self._searched_bytes, torch.cuda.max_memory_reserved(self._index))
            torch.cuda.reset_peak_memory_stats(self._index)
            torch.cuda.reset_accumulated_memory_stats(self._index)

    def synchronize(self) -> None:
        """Wait until the card has finished."""
        torch.cuda.synchronize(self._index)

    def held_bytes(self) -> int:
        """Return what is in live blocks of the allocator."""
        return torch.cuda.memory_allocated(self._index)

    def read_peaks(self) -> DevicePeaks:
        """Read all peaks of the steps so far."""
        self.synchronize()
        self._allocated_bytes = torch.cuda.max_memory_allocated(self._index)
        self._reserved_bytes = torch.cuda.max_memory_reserved(self._index)
        self._alloc_retries = int(torch.cuda.memory_stats(self._index)["num_alloc_retries"])
        context_bytes = self._card.context_bytes(self._others_bytes)
        self._process_bytes = self._reserved_bytes + context_bytes
        held_now_bytes = context_bytes + torch.cuda.memory_reserved(self._index)
        self._others_bytes = max(self._others_bytes, self._card.used_bytes() - held_now_bytes)
        return self._peaks(unattributed_peak(self._allocated_bytes))

    def attribute(self, state: TrainingState) -> DevicePeaks:
        """Run the attributing step and put all readings together."""
        return self._peaks(attribute_step(state, self._index))

    def peak_of_step(self, state: TrainingState) -> int:
        """Run one more optimizer step and return what the allocator had in live blocks at most."""
        torch.cuda.reset_peak_memory_stats(self._index)
        run_optimizer_step(state)
        self.synchronize()
        return torch.cuda.max_memory_allocated(self._index)

    def _peaks(self, peak: AttributedPeak) -> DevicePeaks:
        search = (search_note(self._searched_bytes),) if self._searched_bytes > self._reserved_bytes else ()
        return DevicePeaks(
            allocated_bytes=self._allocated_bytes,
            reserved_bytes=self._reserved_bytes,
            process_bytes=self._process_bytes,
            device_bytes=self._process_bytes + self._others_bytes,
            breakdown=breakdown_of(peak, reserved_bytes=self._reserved_bytes, process_bytes=self._process_bytes),
            alloc_retries=self._alloc_retries,
            notes=(*self._card.notes, *search),
            has_own_context=self._card.has_own_context,
        )

    def release_limits(self) -> None:
        """Lift the cap."""
        if self._cap_bytes is not None:
            torch.cuda.set_per_process_memory_fraction(1.0, self._index)

    def memory_is_full(self) -> bool:
        """Whether the allocator has come near its cap."""
        return (
            self._cap_bytes is not None
            and torch.cuda.max_memory_reserved(self._index) >= NEAR_BUDGET_SHARE * self._cap_bytes
        )


def initialised_card(index: int) -> torch.device:
    """Initialise CUDA and make a card current.

    Raises:
        DeviceError: this PyTorch cannot use the card.
        RuntimeError: the card has no memory for a context, which is left to be judged as full.
    """
    device = torch.device("cuda", index)
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch's own lack of a signature
        torch.cuda.set_device(device)
    except (AssertionError, RuntimeError) as error:  # a build without CUDA asserts
        if memory_kind_of_text(str(error), memory_is_full=False) is not None:
            raise
        reason = str(error).partition("\n")[0]
        raise DeviceError(
            f"PyTorch {torch.__version__} cannot use cuda:{index}: {reason}",
            hint="install a PyTorch that fits card and driver, or plan for the card by name, such as --device rtx-3090",
        ) from error
    return device


def _take_a_toy_step(device: torch.device) -> None:
    """Train one weight once, which loads what every training step needs."""
    layer = torch.nn.Linear(512, 512, device=device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 512, device=device)).sum().backward()
    optimizer.step()
    torch.cuda.synchronize(device)


def attribute_step(state: TrainingState, index: int) -> AttributedPeak:
    """Run one optimizer step, shortened, with the allocator's history on; attribute its largest sum of bytes."""
    state = shortened(state)
    if not state.workload.zero_grad_before_backward:
        zero_gradients(state)
    gc.collect()
    torch.cuda.memory._record_memory_history("all", context=None)  # noqa: SLF001 - the documented way
    try:
        snapshot = torch.cuda.memory._snapshot(index)  # noqa: SLF001 - as above
        own_segments = [segment for segment in snapshot["segments"] if segment["device"] == index]
        resident = resident_blocks(own_segments, known_components(state), visible_storages("cuda"))
        started_at = len(snapshot["device_traces"][index])
        marked_at: dict[int, int] = {}

        def leave_mark(number: int) -> None:
            marked_at[number] = mark_position(len(_history(index)))

        sights = StepSights(state, leave_mark)
        run_optimizer_step(state, sights.as_marks())
        run_evaluation(state, sights.as_marks())
        torch.cuda.synchronize(index)
        events = list(memory_events(_history(index), started_at))
    finally:
        torch.cuda.memory._record_memory_history(None)  # noqa: SLF001 - as above
    return attribute_peak(resident, events, sights.known(marked_at), sights.forwards(marked_at))


def _history(index: int) -> Sequence[Mapping[str, Any]]:
    history: Sequence[Mapping[str, Any]] = torch.cuda.memory._snapshot(index)["device_traces"][index]  # noqa: SLF001 - as above
    return history


def resident_blocks(
    segments: Sequence[Mapping[str, Any]], known: Mapping[int, Component], visible: Mapping[int, int]
) -> list[ResidentBlock]:
    """Every live block of a memory snapshot as what it is; what no Python object holds is a library's workspace."""
    blocks = [block for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"]
    return [
        ResidentBlock(
            address=block["address"],
            size_bytes=block["requested_size"],
            component=known.get(
                block["address"], Component.TEMPORARIES if block["address"] in visible else Component.WORKSPACES
            ),
        )
        for block in blocks
    ]


def memory_events(history: Sequence[Mapping[str, Any]], started_at: int) -> Iterator[MemoryEvent]:
    """The allocations and frees of a memory history from a place on, at even positions."""
    for place, entry in enumerate(history[started_at:], started_at):
        if entry["action"] == "alloc":
            yield MemoryEvent(position=2 * place, address=entry["addr"], size_bytes=entry["size"])
        elif entry["action"] == "free_requested":
            yield MemoryEvent(position=2 * place, address=entry["addr"], size_bytes=-entry["size"])


def mark_position(entries_so_far: int) -> int:
    """Position between the last entry so far and the next, on the scale of :func:`memory_events`."""
    return 2 * entries_so_far - 1


def breakdown_of(peak: AttributedPeak, *, reserved_bytes: int, process_bytes: int) -> BreakdownBytes:
    """Turn an attributed peak, in requested bytes, into components that add up to the process peak."""
    return BreakdownBytes.of_blocks(
        peak.components,
        allocator_slack=reserved_bytes - peak.allocated_bytes,
        context=process_bytes - reserved_bytes,
    )
