"""Runs of nearly one structure, as of compiled code, which a compiler writes anew for every size of the batch."""

from __future__ import annotations

from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from memplan.results import Component

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.estimators.recorder.recording import Recording

_LEAST_LIKE = 0.9  # share of all bytes that are allocated; what kernels do with gradients of weights is far less
_FIXED = (Component.PARAMETERS, Component.GRADIENTS, Component.OPTIMIZER_STATE)


def in_structure_of(reference: Recording, other: Recording) -> Recording | None:
    """Return a run of another size as if it had allocated the reference's blocks; None where too few are alike.

    Blocks are alike that the same operators of the same modules make in the same order, in each phase of a step. What
    the reference alone allocates is taken to grow with the micro-batch, but for what weights need.
    """
    like = dict(_like_blocks(reference, other))
    if sum(reference.block_bytes[block] for block in like) < _LEAST_LIKE * sum(reference.block_bytes):
        return None
    share = other.micro_batch_size / reference.micro_batch_size
    sizes_bytes, calls = list(reference.block_bytes), list(reference.kernel_calls)
    for block, component in enumerate(reference.components):
        if block in like:
            sizes_bytes[block], calls[block] = other.block_bytes[like[block]], other.kernel_calls[like[block]]
        elif component not in _FIXED:
            sizes_bytes[block] = round(share * sizes_bytes[block])
    return replace(reference, micro_batch_size=other.micro_batch_size, block_bytes=sizes_bytes, kernel_calls=calls)


def _like_blocks(reference: Recording, other: Recording) -> Iterator[tuple[int, int]]:
    """Yield blocks of the reference with those that are like them."""
    ours, theirs = _blocks_by_phase(reference), _blocks_by_phase(other)
    for phase in ours.keys() & theirs.keys():
        mine, its = ours[phase], theirs[phase]
        matcher = SequenceMatcher(None, _makers(reference, mine), _makers(other, its), autojunk=False)
        for start, other_start, count in matcher.get_matching_blocks():
            yield from zip(mine[start : start + count], its[other_start : other_start + count], strict=True)


def _blocks_by_phase(recording: Recording) -> dict[tuple[int, int], list[int]]:
    """Return the blocks that each phase of each step allocates, in order; the first step is 1."""
    found: dict[tuple[int, int], list[int]] = {}
    starts = set(recording.step_starts)
    step = 0
    events = zip(recording.event_blocks, recording.event_allocates, recording.event_phases, strict=True)
    for number, (block, allocates, phase) in enumerate(events):
        step += number in starts
        if allocates:
            found.setdefault((step, phase), []).append(block)
    return found


def _makers(recording: Recording, blocks: list[int]) -> list[tuple[str, str]]:
    operators, modules = list(recording.operator_names), list(recording.module_names)
    return [(operators[recording.operators[each]], modules[recording.modules[each]]) for each in blocks]
