"""Matrix products that Inductor pads to lengths that tensor cores read fast.

Inductor times a product padded and as it is, where one of its lengths is no multiple of 16 bytes and it is bound by
arithmetic, and keeps what is faster (``torch/_inductor/fx_passes/pad_mm.py``, torch 2.9 to 2.15). What an H100 found
faster is known from compiled GPT-2 and BERT-base in ``benchmarks/truth``, whose vocabularies of 50,257 and 30,522 words
are the only such lengths in them: in bfloat16 the logits and the gradient that goes on from them are padded, the
weights' gradient, in which the vocabulary is the number of rows, is not; in single precision nothing is. That is
presumed of other half types and cards, too. Batched products, of which nothing is known, are presumed not to be.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import torch
from torch._inductor.fx_passes import pad_mm

from memplan.estimators.fake_tensors.replaced import replaced
from memplan.training.half_precision import HALF_TYPES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_TIMES_BOTH: Final = "_should_pad" if hasattr(pad_mm, "_should_pad") else "should_pad_bench"
_ALIGNED_ELEMENTS: Final = 8  # of a half type, as get_alignment_size has it
# Products of elements read or written from which a card is bound by arithmetic, as is_mm_compute_bound has it: half of
# an H100's 989 TFLOPS in bfloat16 by its 3.35 TB/s (NVIDIA's data sheet). Those of other cards are lower.
_LEAST_INTENSITY: Final = 148


@contextmanager
def products_padded(weight_lengths: Collection[int]) -> Iterator[None]:
    """Let Inductor pad what it is presumed to pad on a card, instead of timing it, while the context is open.

    Args:
        weight_lengths: lengths that weights have. Others follow the micro-batch, and those of a trace are not those of
            the sizes that it stands for: that they may not be aligned is not counted.
    """

    def is_faster(
        _match: object, left: torch.Tensor, right: torch.Tensor, operator: object, *_: object, **__: object
    ) -> bool:
        if operator not in (torch.ops.aten.mm, torch.ops.aten.addmm) or left.dtype not in HALF_TYPES:
            return False
        rows, inner, columns = *left.shape, right.shape[1]
        is_of_weight = any(each in weight_lengths and each % _ALIGNED_ELEMENTS for each in (inner, columns))
        return is_of_weight and is_bound_by_arithmetic(rows, inner, columns)

    with (
        replaced(pad_mm, "check_device", lambda *_: True),
        replaced(pad_mm, "has_triton", lambda *_: True),
        replaced(pad_mm, _TIMES_BOTH, is_faster),
    ):
        yield


def is_bound_by_arithmetic(rows: int, inner: int, columns: int) -> bool:
    """Whether a product of ``(rows, inner)`` and ``(inner, columns)`` takes a card longer than to read and write it."""
    elements = rows * inner + inner * columns + rows * columns
    return rows * inner * columns > _LEAST_INTENSITY * elements
