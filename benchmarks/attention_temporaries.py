"""Compare what memplan expects attention's backward pass to take inside with what PyTorch allocates.

    python benchmarks/cuda_stubs/run.py --card rtx-4090 benchmarks/attention_temporaries.py

Needs a CUDA build of PyTorch, and a card or the stubs of one: PyTorch allocates on the host, by types, shapes, compute
capability and shared memory. Calls that a kernel refuses are counted apart.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from memplan.estimators.lowering.attention_temporaries import attention_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.estimators.lowering.temporary_bytes import Blocks

_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
_WIDTHS = (32, 64, 72, 80, 96, 104, 128, 160, 192, 256)
_LENGTHS = ((130, 130), (512, 512), (96, 300))
_HEADS, _SHARED_HEADS = 8, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a kernel.

    Args:
        backend: the kernel's, as in ``_BACKENDS``.
        dtype: of all tensors.
        samples: of the batch.
        query_length: positions of the query.
        key_length: positions of key and value.
        key_heads: heads of key and value.
        key_width: numbers of a head of query and key.
        value_width: numbers of a head of the value.
    """

    backend: str
    dtype: torch.dtype
    samples: int
    query_length: int
    key_length: int
    key_heads: int
    key_width: int
    value_width: int

    def tensors(self, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return query, key and value as projections make them: by positions first."""
        query = (_HEADS, self.query_length, self.key_width)
        key, value = ((self.key_heads, self.key_length, width) for width in (self.key_width, self.value_width))
        made = [
            torch.empty(self.samples, length, heads, width, dtype=self.dtype, device=device).transpose(1, 2)
            for heads, length, width in (query, key, value)
        ]
        return made[0], made[1], made[2]


def calls(capability: tuple[int, int]) -> Iterator[Call]:
    """Yield calls of all kernels, some of which a kernel or a card refuses."""
    half = torch.bfloat16 if capability >= (8, 0) else torch.float16
    for backend, dtype in itertools.product(_BACKENDS, (half, torch.float32)):
        for samples, lengths, heads in itertools.product((4, 64), _LENGTHS, (_HEADS, _SHARED_HEADS)):
            for widths in itertools.product(_WIDTHS, _WIDTHS):
                yield Call(
                    backend=backend,
                    dtype=dtype,
                    samples=samples,
                    query_length=lengths[0],
                    key_length=lengths[1],
                    key_heads=heads,
                    key_width=widths[0],
                    value_width=widths[1],
                )


def allocated_by_pytorch(call: Call) -> Counter[int] | None:
    """Return the bytes of what the backward pass allocates beside its results; None where it refuses the call."""
    given = [each.requires_grad_() for each in call.tensors("cuda")]
    try:
        with sdpa_kernel(_BACKENDS[call.backend]):
            attended = scaled_dot_product_attention(*given, enable_gqa=call.key_heads != _HEADS)
        gradient = torch.empty_like(attended)
        _record()
        attended.backward(gradient)
    except RuntimeError:
        return None
    (entries,) = torch.cuda.memory._snapshot()["device_traces"]
    sizes = Counter(each["size"] for each in entries if each["action"] == "alloc")
    return sizes - Counter(each.nbytes for each in given)


def _record() -> None:
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(context=None, max_entries=1000)


def expected(call: Call, rules: dict[str, Any]) -> Counter[int]:
    """Return the bytes of what memplan expects it to allocate."""
    query, key, value = call.tensors("meta")
    attended = query.new_empty(call.samples, call.query_length, _HEADS, call.value_width).transpose(1, 2)
    rule = rules[f"aten._scaled_dot_product_{call.backend}_attention_backward"]
    temporaries = rule((attended, query, key, value, attended), None)
    return Counter(each for each in (*_flat(temporaries.throughout), *_flat(temporaries.after_results)) if each)


def _flat(blocks: Blocks) -> Iterator[int]:
    for each in blocks:
        if isinstance(each, tuple):
            yield from _flat(each)
        else:
            yield each if isinstance(each, int) else each.size_bytes


def main() -> None:
    """Print how many calls agree, and the first differences of each kernel."""
    warnings.simplefilter("ignore")
    capability = torch.cuda.get_device_capability()
    rules = attention_rules(capability)
    agreed: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    different: Counter[str] = Counter()
    for call in calls(capability):
        found = allocated_by_pytorch(call)
        if found is None:
            refused[call.backend] += 1
        elif found == (wanted := expected(call, rules)):
            agreed[call.backend] += 1
        else:
            different[call.backend] += 1
            if different[call.backend] <= 5:
                print(f"{dict(wanted)} expected, {dict(found)} allocated: {call}")
    print(f"PyTorch {torch.__version__}, compute capability {capability}")
    for backend in _BACKENDS:
        print(f"  {backend}: {agreed[backend]} agree, {different[backend]} do not, {refused[backend]} are refused")


if __name__ == "__main__":
    main()
