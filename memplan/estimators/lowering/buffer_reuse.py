"""Buffers of a graph that take the place of others, as Inductor has them before it writes its code.

A buffer that is no longer needed is kept for the next one of its size and type, unless more than the graph's peak would
be held meanwhile (``AllocateLine.plan`` in ``torch/_inductor/codegen/wrapper.py``, torch 2.13).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.estimators.lowering.inductor_values import is_given_its_result, layout_of, owner_of, size_bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import fx

    from memplan.estimators.lowering.launches import Launch


def reusing_buffers(launches: Sequence[Launch], live_bytes: Sequence[int]) -> tuple[Launch, ...]:
    """Return the launches with the buffers that they can take over from earlier ones.

    Args:
        launches: what runs, in order.
        live_bytes: what buffers take at most during each.
    """
    most_bytes, held_bytes = max(live_bytes, default=0), list(live_bytes)
    planned = list(launches)
    placed = {node for launch in launches for node in launch.places}
    waiting: defaultdict[object, list[tuple[fx.Node, int]]] = defaultdict(list)
    for number, launch in enumerate(launches):
        for node in _allocated_by(launch):
            pool = waiting[layout_of(node)]
            if not pool:
                continue
            buffer, freed = pool[-1]
            between = slice(freed + 1, number)
            size_bytes = size_bytes_of(node)
            if freed + 1 < number and size_bytes + max(held_bytes[between]) > most_bytes:
                continue
            pool.pop()
            held_bytes[between] = [each + size_bytes for each in held_bytes[between]]
            planned[freed], planned[number] = _handed_over(buffer, node, planned[freed], planned[number])
        taken = set(planned[number].takes_over.values())
        for buffer in dict.fromkeys(map(owner_of, launch.releases)):
            if buffer.op == "call_function" and buffer not in taken and buffer not in placed:
                waiting[layout_of(buffer)].append((buffer, number))
    return tuple(planned)


def _allocated_by(launch: Launch) -> Iterator[fx.Node]:
    """Yield what a launch makes a buffer for; other operators of libraries make their own."""
    nodes = launch.writes if launch.is_joined else filter(is_given_its_result, launch.computes)
    yield from (each for each in nodes if each not in launch.takes_over and layout_of(each) is not None)


def _handed_over(buffer: fx.Node, node: fx.Node, freeing: Launch, taking: Launch) -> tuple[Launch, Launch]:
    parts = tuple(each for each in freeing.releases if owner_of(each) is buffer)
    return (
        replace(freeing, releases=tuple(each for each in freeing.releases if each not in parts)),
        replace(taking, releases=(*taking.releases, *parts), takes_over={**taking.takes_over, node: buffer}),
    )
