"""Compare the kernel of attention that memplan expects with the one that PyTorch chooses, for random calls.

    python benchmarks/cuda_stubs/run.py --card h100-80gb benchmarks/attention_choices.py [--calls 1500]

Needs a CUDA build of PyTorch of the version that memplan follows, and a card or the stubs of one: PyTorch chooses on
the host, by types, shapes and compute capability.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections import Counter
from typing import TYPE_CHECKING

import torch

from memplan.estimators.lowering.attention import AttentionCall, Backend, choose_backend

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHOICES = (Backend.MATH, Backend.FLASH, Backend.EFFICIENT, Backend.CUDNN)  # by PyTorch's numbers
_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_HEADS = ((4, 4), (4, 4), (4, 2), (4, 1), (4, 3))
_LENGTHS = ((64, 64), (64, 32), (1, 64), (64, 1), (17, 17))
_WIDTHS = (32, 64, 72, 80, 96, 100, 128, 130, 160, 192, 200, 256, 264)
_UNEQUAL_WIDTHS = ((64, 32), (192, 128), (60, 60))


def random_calls(count: int) -> Iterator[AttentionCall]:
    """Yield calls whose choice is not obvious; the same in every run."""
    draw = random.Random(0)  # noqa: S311 - not for secrets
    for _ in range(count):
        query_heads, key_heads = draw.choice(_HEADS)
        query_length, key_length = draw.choice(_LENGTHS)
        head_dim, value_dim = draw.choice([*((width, width) for width in _WIDTHS), *_UNEQUAL_WIDTHS])
        has_mask = draw.random() < 0.6
        yield AttentionCall(
            dtype=draw.choice(_TYPES),
            query_heads=query_heads,
            key_heads=key_heads,
            query_length=query_length,
            key_length=key_length,
            head_dim=head_dim,
            value_dim=value_dim,
            has_mask=has_mask,
            trains_mask=has_mask and draw.random() < 0.3,
            dropout=draw.choice([0.0, 0.0, 0.1, 0.25]),
            causal=not has_mask and draw.random() < 0.3,
            trains=draw.random() < 0.6,
            grouped=draw.random() < 0.5,
            is_dense=draw.random() < 0.9,
        )


def choice_of_pytorch(call: AttentionCall) -> Backend:
    """Let PyTorch choose for tensors as the call describes them."""
    query = _tensor(call, call.query_heads, call.query_length, call.head_dim)
    key = _tensor(call, call.key_heads, call.key_length, call.head_dim)
    value = _tensor(call, call.key_heads, call.key_length, call.value_dim)
    mask = None
    if call.has_mask:
        shape = (1, 1, call.query_length, call.key_length)
        mask = torch.empty(shape, dtype=call.dtype, device="cuda", requires_grad=call.trains_mask)
    number = torch._fused_sdp_choice(
        query, key, value, attn_mask=mask, dropout_p=call.dropout, is_causal=call.causal, enable_gqa=call.grouped
    )
    return _CHOICES[number]


def _tensor(call: AttentionCall, heads: int, length: int, width: int) -> torch.Tensor:
    shape = (2, heads, length, width) if call.is_dense else (2, heads, width, length)
    made = torch.empty(shape, dtype=call.dtype, device="cuda", requires_grad=call.trains)
    return made if call.is_dense else made.mT


def main() -> None:
    """Print how many calls agree, and every kind of difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1500)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    capability = torch.cuda.get_device_capability()
    differences: Counter[tuple[Backend, Backend]] = Counter()
    for call in random_calls(options.calls):
        expected, chosen = choose_backend(call, capability), choice_of_pytorch(call)
        if expected is not chosen:
            differences[expected, chosen] += 1
            print(f"{expected} expected, {chosen} chosen: {call}")
    agreed = options.calls - differences.total()
    print(f"PyTorch {torch.__version__}, compute capability {capability}: {agreed} of {options.calls} calls agree")


if __name__ == "__main__":
    main()
