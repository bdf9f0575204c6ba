"""Recurrent layers as cuDNN would run them."""

from __future__ import annotations

import pytest
import torch

from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
from memplan.estimators.lowering.cudnn_recurrence import RecurrentCall, flatten_weights, recurrences

STEPS, BATCH, INPUT, HIDDEN = 10, 2, 32, 64
SM_COUNT = 100
KEPT_STATES_BYTES = 2 * BATCH * HIDDEN * 4 + 256
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
    run_layer = recurrences(SM_COUNT)[f"{operator}.input"]
    output, *last = run_layer(given, states, weights, False, 1, 0.0, train, False, batch_first)
    assert [each.shape for each in last] == [state.shape] * state_count
    return output, [sequence, *weights]


@pytest.mark.parametrize(("operator", "vectors"), [("lstm", 5), ("gru", 6), ("rnn_tanh", 1)])
def test_the_reserve_holds_what_the_backward_pass_needs_of_every_step(operator: str, vectors: int) -> None:
    output, _ = run(operator)
    reserve = output.grad_fn.saved_tensors[2]
    assert reserve.nbytes == vectors * STEPS * BATCH * HIDDEN * 4 + KEPT_STATES_BYTES


def test_a_packed_sequence_is_kept_without_its_padding_but_its_reserve_is_for_the_longest() -> None:
    data = torch.empty(STEPS * BATCH - 5, INPUT, device="meta")
    state = torch.empty(1, BATCH, HIDDEN, device="meta")
    weights = [torch.empty(4 * HIDDEN, width, device="meta", requires_grad=True) for width in (INPUT, HIDDEN)]
    counts = torch.empty(STEPS, device="meta")
    run_layer = recurrences(SM_COUNT)["lstm.data"]
    output, *last = run_layer(data, counts, [state, state], weights, False, 1, 0.0, True, False)
    assert output.shape == (STEPS * BATCH - 5, HIDDEN)
    assert [each.shape for each in last] == [state.shape] * 2
    assert output.grad_fn.saved_tensors[2].nbytes == 5 * STEPS * BATCH * HIDDEN * 4 + KEPT_STATES_BYTES


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


# What an H100 took, of 128 steps and two layers of 1024.
@pytest.mark.parametrize(
    ("kind", "sequences", "item_bytes", "reserve_bytes", "workspace_bytes"),
    [
        ("lstm", 32, 4, 185_073_920, 203_948_544),
        ("lstm", 128, 4, 740_294_912, None),
        ("gru", 32, 4, 218_628_352, None),
    ],
)
def test_two_layers_take_what_they_took_on_a_card(
    kind: str, sequences: int, item_bytes: int, reserve_bytes: int, workspace_bytes: int | None
) -> None:
    call = RecurrentCall(
        kind=kind,
        step_count=128 * sequences,
        sequence_count=sequences,
        hidden_size=1024,
        layers=2,
        directions=1,
        weight_count=4 * GATES[kind] * 1024 * 1024,
        item_bytes=item_bytes,
    )
    assert call.reserve_bytes == reserve_bytes
    assert workspace_bytes is None or call.workspace_bytes == workspace_bytes


def test_the_random_states_of_dropout_are_made_once_and_kept() -> None:
    fakes = TraceFakeMode()
    with fakes:
        sequence, state = torch.empty(STEPS, BATCH, HIDDEN), torch.empty(2, BATCH, HIDDEN)
        weights = [torch.empty(3 * HIDDEN, HIDDEN) for _ in range(4)]
        for _ in range(2):
            recurrences(SM_COUNT)["gru.input"](sequence, state, weights, False, 2, 0.5, True, False, False)
    (kept,) = fakes.kept_by_libraries.values()
    assert kept.nbytes == SM_COUNT * 48 * 1024


@pytest.mark.parametrize(("dropout", "train"), [(0.0, True), (0.5, False)])
def test_without_dropout_no_random_states_are_made(dropout: float, train: bool) -> None:
    fakes = TraceFakeMode()
    with fakes:
        sequence, state = torch.empty(STEPS, BATCH, HIDDEN), torch.empty(2, BATCH, HIDDEN)
        weights = [torch.empty(3 * HIDDEN, HIDDEN) for _ in range(4)]
        recurrences(SM_COUNT)["gru.input"](sequence, state, weights, False, 2, dropout, train, False, False)
    assert not fakes.kept_by_libraries


def test_a_move_to_a_card_lays_the_weights_out_in_one_buffer() -> None:
    layers = torch.nn.GRU(INPUT, HIDDEN)
    values = [each.detach().clone() for each in layers.parameters()]
    buffer = flatten_weights(layers)
    assert buffer is not None
    assert buffer.numel() == sum(each.numel() for each in values)
    assert {each.untyped_storage().data_ptr() for each in layers.parameters()} == {buffer.data_ptr()}
    assert all(torch.equal(each, value) for each, value in zip(layers.parameters(), values, strict=True))


def test_weights_of_a_type_without_such_kernels_are_left() -> None:
    assert flatten_weights(torch.nn.GRU(INPUT, HIDDEN).bfloat16()) is None
