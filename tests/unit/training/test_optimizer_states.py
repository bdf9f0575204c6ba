"""Optimizers that others or hooks step, and their states."""

from __future__ import annotations

import functools
from typing import Any

import torch

from memplan.training.optimizer_states import optimizer_states, optimizers_of


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
    assert optimizers_of(pair, []) == (pair, pair.first, pair.others[0]["second"])


class Stepping:
    """Steps an optimizer in a hook that is its method."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, _: torch.Tensor) -> None:
        self.optimizer.step()


GLOBAL: dict[str, torch.optim.Optimizer] = {}


def test_optimizers_of_hooks_are_in_closures_bound_objects_arguments_and_modules() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    own, enclosed, bound, passed, default, of_module = (torch.optim.SGD([weight]) for _ in range(6))
    GLOBAL["one"] = of_module
    weight.register_post_accumulate_grad_hook(lambda _: enclosed.step())
    weight.register_post_accumulate_grad_hook(Stepping(bound).step)
    weight.register_post_accumulate_grad_hook(functools.partial(torch.optim.SGD.step, passed))
    weight.register_post_accumulate_grad_hook(lambda _, optimizer=default: optimizer.step())
    weight.register_post_accumulate_grad_hook(lambda _: GLOBAL["one"].step())
    without_hooks = torch.nn.Parameter(torch.ones(2))
    assert set(optimizers_of(own, [without_hooks, weight])) == {own, enclosed, bound, passed, default, of_module}


def test_states_are_those_of_all_optimizers() -> None:
    pair, parameters = stepped()
    states = list(optimizer_states(optimizers_of(pair, [])))
    assert [id(parameter) for parameter, _ in states] == list(map(id, parameters))
    assert [sorted(state) for _, state in states] == [["exp_avg", "exp_avg_sq", "step"], ["momentum_buffer"]]
    assert len(list(optimizer_states(optimizers_of(Delegating(pair), [])))) == 2
