"""What oneDNN's LSTM keeps for its backward pass on the CPU, which torch's rule for fake tensors (2.13) leaves out.

Its workspace holds, for each step and sample, the gates and the hidden state before its projection, and for one step
more the states twice, with their gradients (``set_workspace_sizes`` in ``src/cpu/rnn/rnn_utils.cpp`` of oneDNN 3);
rows are padded to 64 bytes and past multiples of 256 elements (``get_good_ld`` there). The parts and their types were
found by asking the operator of torch 2.11 and 2.13 for its workspace (that of 2.9 is larger by a fifth and more);
widths that are no multiples of 16 come out within some percent.
"""

from __future__ import annotations

from typing import Any

import torch

LAYER = torch.ops.aten.mkldnn_rnn_layer.default
_FP32, _PAGE, _LINE = 4, 4096, 64  # bytes
_GATES = 4
_TRAINS = 15  # place of the argument


def recurrent_layer(*args: Any) -> tuple[torch.Tensor, ...]:
    """Run a layer's own rule for fake tensors, and give what it returns the workspace of the kernel."""
    output, hidden, cell, workspace = LAYER(*args)
    if args[_TRAINS]:
        steps, samples, width = args[0].shape
        size_bytes = _workspace_bytes(steps, samples, width, output.shape[-1], output.element_size())
        workspace = torch.empty(size_bytes, dtype=torch.uint8)
    return output, hidden, cell, workspace


def gates_bytes(rows: int, hidden: int, element_bytes: int) -> int:
    """Return what the gates of some steps and samples take, each a padded row."""
    return rows * _padded(_GATES * hidden, element_bytes)


def _workspace_bytes(steps: int, samples: int, width: int, hidden: int, element_bytes: int) -> int:
    rows, more_rows = steps * samples, 2 * (steps + 1) * samples
    widest = max(width, hidden)
    gradients = more_rows * _padded(widest, _FP32)
    parts = (
        gates_bytes(rows, hidden, element_bytes),
        rows * _padded(hidden, element_bytes),
        more_rows * _padded(widest, element_bytes),  # what goes into each step
        gradients,  # of what goes in
        gradients,  # of hidden states
        more_rows * hidden * element_bytes,  # hidden states
        more_rows * hidden * _FP32,  # cell states
    )
    return sum(-(-part // _PAGE) * _PAGE for part in parts)


def _padded(elements: int, element_bytes: int) -> int:
    line = _LINE // element_bytes
    rounded = -(-elements // line) * line
    return (rounded + line if rounded % 256 == 0 else rounded) * element_bytes
