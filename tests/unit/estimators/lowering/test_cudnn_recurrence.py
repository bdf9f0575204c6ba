"""Recurrent layers as cuDNN would run them."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.lowering.cudnn_recurrence import recurrences

STEPS, BATCH, INPUT, HIDDEN = 10, 2, 32, 64
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1}


def run(operator: str, *, train: bool = True, batch_first: bool = False) -> tuple[torch.Tensor, list[torch.Tensor]]:
    gates, state_count = GATES[operator], 2 if operator == "lstm" else 1
    sequence = torch.empty(STEPS, BATCH, INPUT, device="meta", requires_grad=True)
    state = torch.empty(1, BATCH, HIDDEN, device="meta")
    weights = [
        torch.empty(gates * HIDDEN, INPUT, device="meta", requires_grad=True),
        torch.empty(gates * HIDDEN, HIDDEN, device="meta", requires_grad=True),
    ]
    states = state if state_count == 1 else [state] * state_count
    given = sequence.transpose(0, 1) if batch_first else sequence
    run_layer = recurrences()[f"{operator}.input"]
    output, *last = run_layer(given, states, weights, False, 1, 0.0, train, False, batch_first)
    assert [each.shape for each in last] == [state.shape] * state_count
    return output, [sequence, *weights]


@pytest.mark.parametrize(("operator", "vectors"), [("lstm", 6), ("gru", 5), ("rnn_tanh", 1)])
def test_the_reserve_holds_what_the_backward_pass_needs_of_every_step(operator: str, vectors: int) -> None:
    output, _ = run(operator)
    reserve = output.grad_fn.saved_tensors[2]
    assert reserve.numel() == vectors * STEPS * BATCH * HIDDEN


def test_a_packed_sequence_is_kept_without_its_padding_but_its_reserve_is_for_the_longest() -> None:
    data = torch.empty(STEPS * BATCH - 5, INPUT, device="meta")
    state = torch.empty(1, BATCH, HIDDEN, device="meta")
    weights = [torch.empty(4 * HIDDEN, width, device="meta", requires_grad=True) for width in (INPUT, HIDDEN)]
    counts = torch.empty(STEPS, device="meta")
    output, *last = recurrences()["lstm.data"](data, counts, [state, state], weights, False, 1, 0.0, True, False)
    assert output.shape == (STEPS * BATCH - 5, HIDDEN)
    assert [each.shape for each in last] == [state.shape] * 2
    assert output.grad_fn.saved_tensors[2].numel() == 6 * STEPS * BATCH * HIDDEN


def test_nothing_is_reserved_in_evaluation() -> None:
    output, _ = run("lstm", train=False)
    assert output.grad_fn.saved_tensors[2].numel() == 0


@pytest.mark.parametrize("operator", list(GATES))
def test_every_input_gets_a_gradient_of_its_shape_and_the_weights_share_one_buffer(operator: str) -> None:
    output, inputs = run(operator)
    gradients = torch.autograd.grad(output.sum(), inputs)
    assert [each.shape for each in gradients] == [each.shape for each in inputs]
    assert gradients[1]._base is gradients[2]._base is not None


def test_a_batch_first_layer_answers_batch_first() -> None:
    assert run("gru", batch_first=True)[0].shape == (BATCH, STEPS, HIDDEN)
