"""The order in which autograd runs nodes that a backward pass has made, for gradients of gradients on a card.

Of the nodes that are ready, the one that was made last runs first (``CompareNodeTaskTime`` in
``torch/csrc/autograd/engine.h``). Each thread counts the nodes that it makes by itself
(``aten/src/ATen/SequenceNumber.cpp``), and a card's backward pass runs on a thread of its own. Its nodes therefore
have other numbers than on the CPU, where the thread that calls it runs it. Nodes are counted from the first step on.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import _get_sequence_nr

from memplan.estimators.fake_tensors.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_BEYOND_ALL = 1 << 48
_OF_LEAVES = (1 << 64) - 1  # the number of nodes that accumulate gradients


class BackwardThread:
    """Gives nodes that backward passes make the numbers that they have on a card."""

    def __init__(self) -> None:
        self._first = self._step_began = _get_sequence_nr()
        self._runs: list[tuple[int, int]] = []  # number before each backward pass of the step, and nodes it made

    @property
    def _made(self) -> int:
        return sum(made for _, made in self._runs)

    @contextmanager
    def numbering(self) -> Iterator[None]:
        """Number nodes while the context is open."""
        run: Callable[..., Any] = torch.autograd._engine_run_backward  # type: ignore[attr-defined]  # noqa: SLF001

        def numbered(
            outputs: Any, slopes: Any, retain_graph: bool, create_graph: bool, *args: Any, **named: Any
        ) -> Any:
            if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001 - inside a backward pass, on its thread
                return run(outputs, slopes, retain_graph, create_graph, *args, **named)
            before = _get_sequence_nr()
            results = run(outputs, slopes, retain_graph, create_graph, *args, **named)
            offset, numbers = self._first + self._made - before, range(before, _get_sequence_nr())
            self._runs.append((before, len(numbers)))
            if create_graph:
                made = _nodes_of(_origins([*(results or ()), *_gradients_of(outputs)]), numbers)
                for node, number in made.items():
                    node._set_sequence_nr(self._among_callers(number + offset))  # noqa: SLF001 - public nowhere else
            return results

        with replaced(torch.autograd, "_engine_run_backward", numbered):
            yield

    def end_step(self) -> None:
        """Number as after many such steps: of two threads, the one that makes more nodes a step is far ahead."""
        made_by_caller = _get_sequence_nr() - self._step_began - self._made
        self._first = 0 if self._made < made_by_caller else _BEYOND_ALL
        self._step_began = _get_sequence_nr()
        self._runs.clear()

    def _among_callers(self, number: int) -> int:
        """Return a number that compares with the calling thread's here as the given one does with them there."""
        for before, made in self._runs:
            number += made if number >= before else 0
        return number


def _origins(tensors: Iterable[torch.Tensor | None]) -> list[Any]:
    return [each.grad_fn for each in tensors if each is not None and each.grad_fn is not None]


def _nodes_of(roots: list[Any], numbers: range) -> dict[Any, int]:
    """Return the nodes with these numbers that roots depend on, by nodes with such numbers, with their numbers."""
    found: dict[Any, int] = {}
    pending = [*roots]
    while pending:
        node = pending.pop()
        number = node._sequence_nr()  # noqa: SLF001 - public under no other name
        if node not in found and number in numbers:
            found[node] = number
            pending += [each for each, _ in node.next_functions if each is not None]
    return found


def _gradients_of(outputs: Iterable[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the gradients of the leaves that outputs depend on."""
    nodes = _nodes_of(_origins(outputs), range(_OF_LEAVES))
    leaves = (each for node in nodes for each, _ in node.next_functions if hasattr(each, "variable"))
    return [each.variable.grad for each in leaves]
