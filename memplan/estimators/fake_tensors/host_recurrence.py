"""The workspace that oneDNN's LSTM keeps for its backward pass on the CPU.

Torch's rule for fake tensors (2.13) omits it. It holds, for each step and sample, the gates and the hidden state before
its projection, and for one step more the states twice, with their gradients (``set_workspace_sizes`` in
``src/cpu/rnn/rnn_utils.cpp`` of oneDNN 3). Rows are padded to 64 bytes, and beyond multiples of 256 elements
(``get_good_ld`` there). The parts and their types agree with the workspaces that the operator returns in torch 2.11 and
2.13 (2.9 returns at least a fifth more); for widths that are not multiples of 16 the error is a few percent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memplan.units import round_up

if TYPE_CHECKING:
    from collections.abc import Sequence

LAYER = torch.ops.aten.mkldnn_rnn_layer.default
_FP32_BYTES, _PAGE_BYTES, _LINE_BYTES = 4, 4096, 64
_GATES = 4
_TRAIN_ARGUMENT = 15


def recurrent_layer(*args: Any) -> tuple[torch.Tensor, ...]:
    """Run the layer's rule for fake tensors, and add the kernel's workspace to its results."""
    output, hidden, cell, workspace = LAYER(*args)
    if args[_TRAIN_ARGUMENT]:
        steps, samples, width = args[0].shape
        size_bytes = _workspace_bytes(steps, samples, width, output.shape[-1], output.element_size())
        workspace = torch.empty(size_bytes, dtype=torch.uint8)
    return output, hidden, cell, workspace


def scratch_bytes(steps: int, samples: int, hidden: int) -> int:
    """Return what a layer works in: the gates of all steps, and hidden states and their gradients of one, in fp32.

    A further page of pointers is not counted.
    """
    parts = (
        steps * samples * padded_bytes(_GATES * hidden, _FP32_BYTES),
        *2 * [samples * padded_bytes(hidden, _FP32_BYTES)],
    )
    return _in_pages(parts)


def _workspace_bytes(steps: int, samples: int, width: int, hidden: int, element_bytes: int) -> int:
    rows, more_rows = steps * samples, 2 * (steps + 1) * samples
    widest = max(width, hidden)
    gradients = more_rows * padded_bytes(widest, _FP32_BYTES)
    parts = (
        rows * padded_bytes(_GATES * hidden, element_bytes),
        rows * padded_bytes(hidden, element_bytes),
        more_rows * padded_bytes(widest, element_bytes),  # inputs of each step
        gradients,  # of the inputs
        gradients,  # of hidden states
        more_rows * hidden * element_bytes,  # hidden states
        more_rows * hidden * _FP32_BYTES,  # cell states
    )
    return _in_pages(parts)


def _in_pages(parts: Sequence[int]) -> int:
    """Return what parts take that begin at pages: half a page more each, so that sizes stay on a line."""
    return sum(parts) + len(parts) * _PAGE_BYTES // 2


def padded_bytes(elements: int, element_bytes: int) -> int:
    """Return what a row of so many elements takes in oneDNN's layout."""
    line = _LINE_BYTES // element_bytes
    rounded = round_up(elements, line)
    return (rounded + line if rounded % 256 == 0 else rounded) * element_bytes
