"""Compare what memplan expects attention's two passes to take inside with what PyTorch allocates.

    python benchmarks/cuda_stubs/run.py --card rtx-4090 benchmarks/attention_temporaries.py
    python benchmarks/cuda_stubs/run.py --card rtx-4090 benchmarks/attention_temporaries.py --deterministic

Needs a CUDA build of PyTorch, and a card or the stubs of one: PyTorch allocates on the host, by types, shapes, compute
capability and shared memory. Calls that a kernel refuses are counted apart.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

from memplan.estimators.lowering.attention_temporaries import attention_rules
from memplan.estimators.lowering.temporary_bytes import NO_TEMPORARIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.estimators.lowering.temporary_bytes import Blocks, TemporaryBytes

_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
_PACKED = "packed"  # flash attention on sequences without padding
_CAUSAL = (-1, 0)  # from PyTorch 2.14 on cuDNN runs some other calls
_WIDTHS = (32, 64, 72, 80, 96, 104, 128, 160, 192, 256)
_LENGTHS = ((130, 130), (512, 512), (96, 300))
_HEADS, _SHARED_HEADS = 8, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a kernel.

    Args:
        backend: the kernel's, as in ``_BACKENDS``, or ``_PACKED``.
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

    @property
    def operator(self) -> str:
        """Name of the operator that the call comes to."""
        if self.backend == _PACKED:
            return "torch_attn._varlen_attn"
        return f"aten._scaled_dot_product_{self.backend}_attention"

    def tensors(self, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return query, key and value as projections make them: by positions first."""
        query = (_HEADS, self.query_length, self.key_width)
        key, value = ((self.key_heads, self.key_length, width) for width in (self.key_width, self.value_width))
        made = [
            torch.empty(self.samples, length, heads, width, dtype=self.dtype, device=device).transpose(1, 2)
            for heads, length, width in (query, key, value)
        ]
        if self.backend == _PACKED:
            made = [each.transpose(1, 2).flatten(0, 1) for each in made]
        return made[0], made[1], made[2]

    def sequence_ends(self, length: int, device: str) -> torch.Tensor:
        """Return where packed sequences of a length begin and the last one ends."""
        return torch.arange(0, self.samples * length + 1, length, dtype=torch.int32, device=device)


def calls(capability: tuple[int, int]) -> Iterator[Call]:
    """Yield calls of all kernels, some of which a kernel or a card refuses."""
    half = torch.bfloat16 if capability >= (8, 0) else torch.float16
    for backend, dtype in itertools.product((*_BACKENDS, _PACKED), (half, torch.float32)):
        for samples, lengths, heads in itertools.product((1, 64), _LENGTHS, (_HEADS, _SHARED_HEADS)):
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


def allocated_by_pytorch(call: Call) -> tuple[Counter[int], Counter[int]] | None:
    """Return the bytes of what the two passes allocate beside their results; None where a kernel refuses the call."""
    given = [each.requires_grad_() for each in call.tensors("cuda")]
    try:
        attended, forward = _forward(call, given)
        gradient = torch.empty_like(attended)
        _record()
        attended.backward(gradient)
    except RuntimeError:
        return None
    return forward, _recorded("alloc") - Counter(each.nbytes for each in given) - _of_autograd(call)


def _forward(call: Call, given: list[torch.Tensor]) -> tuple[torch.Tensor, Counter[int]]:
    is_shared = call.key_heads != _HEADS
    if call.backend != _PACKED:
        _record()
        with sdpa_kernel(_BACKENDS[call.backend]):
            attended = scaled_dot_product_attention(*given, enable_gqa=is_shared)
        return attended, _recorded("free_requested")
    lengths = (call.query_length, call.key_length)
    ends = [call.sequence_ends(each, "cuda") for each in lengths]
    attended = varlen_attn(*given, *ends, *lengths, window_size=_CAUSAL, enable_gqa=is_shared)
    return attended, Counter()


def _of_autograd(call: Call) -> Counter[int]:
    """Return the bytes of gradients of what packed calls return besides: sums of rows, and a state of two numbers."""
    if call.backend != _PACKED:
        return Counter()
    return Counter((_HEADS * call.samples * call.query_length * 4, 16))


def _record() -> None:
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(context=None, max_entries=1000)


def _recorded(action: str) -> Counter[int]:
    (entries,) = torch.cuda.memory._snapshot()["device_traces"]
    return Counter(each["size"] for each in entries if each["action"] == action)


def expected(call: Call, rules: dict[str, Any]) -> tuple[Counter[int], Counter[int]]:
    """Return the bytes of what memplan expects the two passes to allocate."""
    query, key, value = call.tensors("meta")
    attended = query.new_empty(call.samples, call.query_length, _HEADS, call.value_width).transpose(1, 2)
    of_forward: tuple[Any, ...] = (query, key, value)
    of_backward: tuple[Any, ...] = (attended, query, key, value, attended, attended)
    if call.backend == _PACKED:
        lengths = (call.query_length, call.key_length)
        packing = (*(call.sequence_ends(each, "meta") for each in lengths), *lengths, False)
        of_forward = (*of_forward, *packing, None, _CAUSAL)
        of_backward = (*of_backward, *packing, None, None, _CAUSAL)
    forward = rules[call.operator](of_forward, None) if call.operator in rules else NO_TEMPORARIES
    backward = rules[f"{call.operator}_backward"](of_backward, None)
    return _sizes(forward), _sizes(backward)


def _sizes(temporaries: TemporaryBytes) -> Counter[int]:
    return Counter(each for each in (*_flat(temporaries.throughout), *_flat(temporaries.after_results)) if each)


def _flat(blocks: Blocks) -> Iterator[int]:
    for each in blocks:
        if isinstance(each, tuple):
            yield from _flat(each)
        else:
            yield each if isinstance(each, int) else each.size_bytes


def _text(passes: tuple[Counter[int], Counter[int]]) -> str:
    return " and ".join(str(dict(each)) for each in passes)


def main() -> None:
    """Print how many calls agree, and the first differences of each kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deterministic", action="store_true", help="under PyTorch's deterministic algorithms")
    torch.use_deterministic_algorithms(parser.parse_args().deterministic)
    warnings.simplefilter("ignore")
    capability = torch.cuda.get_device_capability()
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    rules = attention_rules(capability, multiprocessors)
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
                print(f"{_text(wanted)} expected, {_text(found)} allocated: {call}")
    print(f"PyTorch {torch.__version__}, compute capability {capability}")
    for backend in (*_BACKENDS, _PACKED):
        print(f"  {backend}: {agreed[backend]} agree, {different[backend]} do not, {refused[backend]} are refused")


if __name__ == "__main__":
    main()
