"""Recurrent layers of cuDNN: one kernel for all steps, a reserve space for the backward pass, and workspaces.

What cuDNN takes (``cudnnGetRNNTempSpaceSizes``, ``cudnnDropoutGetStatesSize``) it says only where there is a card. The
sizes here were read off six trainings on an H100 (``benchmarks/truth``, cuDNN 9.19): an LSTM and a GRU of two layers in
one direction, as wide as their input, at two batch sizes and in two precisions. What they leave open, how sizes grow
with layers and directions, is assumed; of plain RNNs nothing was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Vectors of the hidden size that each step of a layer saves for the backward pass; between layers one more is saved.
_KEPT_VECTORS = {"lstm": 5, "gru": 6, "rnn_tanh": 1, "rnn_relu": 1}
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_SINGLE_BYTES = 4  # of an element in single precision, whatever the type of the sequence
_KEPT_STATES, _TAKEN_STATES = 2, 5  # of each layer
_TAKEN_SQUARES = 2  # matrices of each layer from state to state, beside its weights
_KEPT_BYTES, _TAKEN_BYTES = 256, 512  # beside all else
_DROPOUT_STATE = "cuDNN's random states of dropout"
_DROPOUT_STATE_BYTES_PER_SM = 48 << 10  # 1024 threads, each with cuRAND's state of 48 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentCall:
    """One run of a recurrent network, as far as cuDNN's memory depends on it.

    Args:
        kind: of the cells, by the operator's name.
        step_count: steps of the longest sequence, times sequences.
        sequence_count: sequences of the batch.
        hidden_size: of a layer's state.
        layers: one upon the other.
        directions: 2 where each layer also runs backwards, else 1.
        weight_count: elements of the weights without biases.
        item_bytes: of an element of the sequence.
    """

    kind: str
    step_count: int
    sequence_count: int
    hidden_size: int
    layers: int
    directions: int
    weight_count: int
    item_bytes: int

    @property
    def reserve_bytes(self) -> int:
        """What is saved for the backward pass, in bytes."""
        vectors = self.directions * (_KEPT_VECTORS[self.kind] * self.layers + self.layers - 1)
        return self._of_steps(vectors) + self._of_states(_KEPT_STATES, _SINGLE_BYTES) + _KEPT_BYTES

    @property
    def workspace_bytes(self) -> int:
        """What each of the three kernels of a training step takes while it runs, in bytes."""
        vectors = self.directions * (_GATES[self.kind] + self.layers + 1)
        squares = _TAKEN_SQUARES * self.layers * self.directions * self.hidden_size**2
        item_bytes = _SINGLE_BYTES + (self.item_bytes if self.kind == "lstm" else 0)  # of its second state
        of_states = self._of_states(_TAKEN_STATES, item_bytes)
        return self._of_steps(vectors) + _SINGLE_BYTES * (self.weight_count + squares) + of_states + _TAKEN_BYTES

    def _of_steps(self, vectors: int) -> int:
        return vectors * self.step_count * self.hidden_size * self.item_bytes

    def _of_states(self, count: int, item_bytes: int) -> int:
        return count * self.layers * self.directions * self.sequence_count * self.hidden_size * item_bytes


def recurrences(sm_count: int | None) -> dict[str, Callable[..., tuple[torch.Tensor, ...]]]:
    """Return replacements for all recurrent operators, on padded and on packed sequences.

    Args:
        sm_count: multiprocessors of the card; None where they are not known, and dropout's random states not counted.
    """
    runs: tuple[tuple[str, Callable[..., Any]], ...] = (("input", _recurrence), ("data", _packed_recurrence))
    return {
        f"{kind}.{form}": partial(run, kind, (sm_count or 0) * _DROPOUT_STATE_BYTES_PER_SM)
        for kind in _KEPT_VECTORS
        for form, run in runs
    }


def flatten_weights(layers: nn.RNNBase) -> torch.Tensor | None:
    """Lay a recurrent network's weights out in one buffer, as its move to a card does; return it, None if it does not.

    Source: ``RNNBase.flatten_parameters``, which the move calls.
    """
    weights = [each for each in layers.parameters(recurse=False) if each.numel()]
    types = {each.dtype for each in weights}
    if len(types) != 1 or not types <= torch.backends.cudnn.CUDNN_TENSOR_DTYPES or not torch.backends.cudnn.enabled:
        return None
    with torch.no_grad():
        buffer = weights[0].new_empty(sum(each.numel() for each in weights))
        parts = torch.split(buffer, [each.numel() for each in weights])
        for each, part in zip(weights, parts, strict=True):
            each.data = part.view_as(each).copy_(each)
    return buffer


def _recurrence(  # noqa: PLR0917 - the operator's own signature
    kind: str,
    dropout_state_bytes: int,
    sequence: torch.Tensor,
    states: torch.Tensor | list[torch.Tensor],
    weights: list[torch.Tensor],
    has_biases: bool,  # noqa: ARG001
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    if batch_first:
        sequence = sequence.transpose(0, 1)
    if dropout > 0 and train:
        _keep_dropout_state(sequence, dropout_state_bytes)
    steps, sequences = sequence.shape[:2]
    padded = (steps, sequences, layers, 2 if bidirectional else 1)
    output, *last = _run(_call(kind, padded, sequence, states, weights), sequence, states, weights, train=train)
    return (output.transpose(0, 1) if batch_first else output, *last)


def _packed_recurrence(  # noqa: PLR0917 - the operator's own signature
    kind: str,
    dropout_state_bytes: int,
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    states: torch.Tensor | list[torch.Tensor],
    weights: list[torch.Tensor],
    has_biases: bool,  # noqa: ARG001
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[torch.Tensor, ...]:
    """Take as much as for padded sequences.

    ``cudnnGetRNNTempSpaceSizes`` reads only the number of sequences and the largest length.
    """
    if dropout > 0 and train:
        _keep_dropout_state(data, dropout_state_bytes)
    padded = (len(batch_sizes), _listed(states)[0].shape[1], layers, 2 if bidirectional else 1)
    return _run(_call(kind, padded, data, states, weights), data, states, weights, train=train)


def _keep_dropout_state(sequence: torch.Tensor, size_bytes: int) -> None:
    """Allocate the state of the random numbers once, which PyTorch keeps for every recurrent layer of the process."""
    mode = sequence.fake_mode if isinstance(sequence, FakeTensor) else None
    if isinstance(mode, TraceFakeMode) and _DROPOUT_STATE not in mode.kept_by_libraries:
        mode.kept_by_libraries[_DROPOUT_STATE] = sequence.new_empty(size_bytes, dtype=torch.uint8)


def _call(
    kind: str,
    padded: tuple[int, int, int, int],
    sequence: torch.Tensor,
    states: torch.Tensor | list[torch.Tensor],
    weights: list[torch.Tensor],
) -> RecurrentCall:
    """Describe a run; padded, it has so many steps, sequences, layers and directions."""
    steps, sequences, layers, directions = padded
    return RecurrentCall(
        kind=kind,
        step_count=steps * sequences,
        sequence_count=sequences,
        hidden_size=_listed(states)[-1].shape[-1],
        layers=layers,
        directions=directions,
        weight_count=sum(each.numel() for each in weights if each.dim() > 1),
        item_bytes=sequence.element_size(),
    )


def _listed(states: torch.Tensor | list[torch.Tensor]) -> list[torch.Tensor]:
    return [states] if isinstance(states, torch.Tensor) else list(states)


def _run(
    call: RecurrentCall,
    sequence: torch.Tensor,
    states: torch.Tensor | list[torch.Tensor],
    weights: list[torch.Tensor],
    *,
    train: bool,
) -> tuple[torch.Tensor, ...]:
    """Run all layers; outside training without what cuDNN takes for them."""
    first = _listed(states)
    made: tuple[torch.Tensor, ...] = _Recurrence.apply(  # type: ignore[no-untyped-call]  # untyped in torch
        call if train else None, call.directions, sequence, len(first), *first, *weights
    )
    return made


class _Recurrence(torch.autograd.Function):
    """Allocates what ``_cudnn_rnn`` and its backward allocate (``aten/src/ATen/native/cudnn/RNN.cpp``).

    Each of the three kernels copies batch-first input, as the first of the backward pass does the output's gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        call: RecurrentCall | None,
        directions: int,
        sequence: torch.Tensor,
        count: int,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        states = tensors[:count]
        in_order = sequence.contiguous()
        output = in_order.new_empty(*sequence.shape[:-1], directions * states[0].shape[-1])
        last = [torch.empty_like(state) for state in states]
        workspace = _workspace(call, sequence)
        reserve = sequence.new_empty(0 if call is None else call.reserve_bytes, dtype=torch.uint8)
        del workspace
        ctx.call, ctx.count = call, count
        ctx.save_for_backward(sequence, output, reserve, *tensors)
        return output, *last

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_of_states: torch.Tensor) -> tuple[Any, ...]:
        sequence, _output, _reserve, *tensors = ctx.saved_tensors
        states, weights = tensors[: ctx.count], tensors[ctx.count :]
        # allocated even if the input needs no gradient, and alive until the weights' gradients are computed
        of_sequence, *of_states = _input_gradients(ctx.call, sequence, gradient, states)
        of_weights = _weight_gradients(ctx.call, sequence, weights)
        return None, None, of_sequence, None, *of_states, *of_weights


def _workspace(call: RecurrentCall | None, sequence: torch.Tensor) -> torch.Tensor:
    """Return a block that the caller drops where cuDNN's kernel returns."""
    return sequence.new_empty(0 if call is None else call.workspace_bytes, dtype=torch.uint8)


def _input_gradients(
    call: RecurrentCall | None, sequence: torch.Tensor, gradient: torch.Tensor, states: list[torch.Tensor]
) -> list[torch.Tensor]:
    copies = [sequence.contiguous(), gradient.contiguous()]
    made = [torch.empty_like(each) for each in (copies[0], *states)]
    _workspace(call, sequence)
    return made


def _weight_gradients(
    call: RecurrentCall | None, sequence: torch.Tensor, weights: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return views of one buffer."""
    copy = sequence.contiguous()
    sizes = [weight.numel() for weight in weights]
    parts = torch.split(copy.new_empty(sum(sizes)), sizes)
    _workspace(call, sequence)
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
