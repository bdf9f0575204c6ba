"""Nodes of gradients are numbered as by the thread that a card's backward pass runs on."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.recorder.backward_thread import BackwardThread


def step(*, gradients: int, accumulates: bool = False) -> str:
    """Differentiate a gradient beside another branch, and return which of the two branches was differentiated first."""
    order: list[str] = []
    x = torch.ones(2, requires_grad=True)
    plain, total = x.neg().neg() * 3, (x * x).sum()
    plain.register_hook(lambda _: order.append("plain"))
    for _ in range(gradients):
        (gradient,) = torch.autograd.grad(total, x, create_graph=True)
    if accumulates:
        total.backward(create_graph=True)
        gradient, x.grad = x.grad, None
    gradient.register_hook(lambda _: order.append("gradient"))
    (plain.sum() + gradient.sum()).backward()
    assert torch.equal(x.grad, torch.full((2,), 3.0 + 2.0))
    return order[0]


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True:UserWarning")
@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize(("gradients", "first"), [(1, "plain"), (10, "gradient")])
def test_in_later_steps_the_thread_that_makes_fewer_nodes_is_behind(
    gradients: int, first: str, accumulates: bool
) -> None:
    assert step(gradients=gradients, accumulates=accumulates) == "gradient"  # of one thread, the later are first
    thread = BackwardThread()
    with thread.numbering():
        step(gradients=gradients, accumulates=accumulates)
        thread.end_step()
        assert step(gradients=gradients, accumulates=accumulates) == first


def test_in_the_first_step_both_threads_begin_to_count() -> None:
    thread = BackwardThread()
    with thread.numbering():
        x = torch.ones(2, requires_grad=True)
        power = x**2
        (gradient,) = torch.autograd.grad(power.sum(), x, create_graph=True)
    made = [gradient.grad_fn, *(node for node, _ in gradient.grad_fn.next_functions if node is not None)]
    first = min(node._sequence_nr() for node in made)
    assert first in range(power.grad_fn._sequence_nr(), power.grad_fn._sequence_nr() + 2)  # there are two before


def test_a_backward_pass_inside_another_one_is_left_as_it_is() -> None:
    class Differentiating(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, tensor: torch.Tensor) -> torch.Tensor:
            return tensor * 2

        @staticmethod
        def backward(ctx: object, slope: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                inner = torch.ones(2, requires_grad=True)
                return torch.autograd.grad((inner * inner).sum(), inner, create_graph=True)[0].detach() * slope

    thread = BackwardThread()
    with thread.numbering():
        x = torch.ones(2, requires_grad=True)
        Differentiating.apply(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 2.0))
