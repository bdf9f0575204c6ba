"""States of optimizers that hold others."""

from __future__ import annotations

from typing import Any

import torch

from memplan.training.optimizer_states import optimizer_states, optimizers_in


class Pair(torch.optim.Optimizer):
    """Steps two others, one of them in a dict that is in a list."""

    def __init__(self, first: torch.nn.Parameter, second: torch.nn.Parameter) -> None:
        super().__init__([first, second], {})
        self.first = torch.optim.Adam([first])
        self.others: list[Any] = [{"second": torch.optim.SGD([second], momentum=0.9)}]
        self.others.append(self.others)  # a cycle

    def step(self, closure: Any = None) -> None:
        self.first.step()
        self.others[0]["second"].step()


class Delegating(torch.optim.Optimizer):
    """Never makes a state of its own, as torchao's CPUOffloadOptimizer does not."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner


def stepped() -> tuple[Pair, list[torch.nn.Parameter]]:
    parameters = [torch.nn.Parameter(torch.ones(size)) for size in (2, 3)]
    pair = Pair(*parameters)
    for each in parameters:
        each.grad = torch.ones_like(each)
    pair.step()
    return pair, parameters


def test_optimizers_that_another_holds_are_found_once() -> None:
    pair, _ = stepped()
    assert optimizers_in(pair) == (pair, pair.first, pair.others[0]["second"])


def test_states_are_those_of_all_optimizers() -> None:
    pair, parameters = stepped()
    states = list(optimizer_states(pair))
    assert [id(parameter) for parameter, _ in states] == list(map(id, parameters))
    assert [sorted(state) for _, state in states] == [["exp_avg", "exp_avg_sq", "step"], ["momentum_buffer"]]
    assert len(list(optimizer_states(Delegating(pair)))) == 2
