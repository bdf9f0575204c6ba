"""What the backward passes of layer norm and RMS norm sum through on a card."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from memplan.devices.card_context import threads_per_multiprocessor
from memplan.estimators.lowering.temporary_bytes import FP32_BYTES, NO_TEMPORARIES, TemporaryBytes
from memplan.estimators.temporaries.layer_gradient_parts import LayerGradientParts
from memplan.estimators.temporaries.reductions import Reduction
from memplan.estimators.temporaries.ruled_blocks import ruled_blocks

if TYPE_CHECKING:
    from memplan.estimators.lowering.temporary_bytes import Rule

_WEIGHT_PLACES = {"aten.native_layer_norm_backward": 5, "aten._fused_rms_norm_backward": 4}


def layer_norm_rules(capability: tuple[int, int], multiprocessors: int | None) -> dict[str, Rule]:
    """Return the rules by operator name without overload.

    Args:
        capability: compute capability of the card.
        multiprocessors: of the card; None where only its memory is known, and nothing is counted.
    """
    if multiprocessors is None:
        return {}
    threads = threads_per_multiprocessor(capability)
    return {
        operator: partial(_backward, weight_place=place, multiprocessors=multiprocessors, threads=threads)
        for operator, place in _WEIGHT_PLACES.items()
    }


def _backward(
    args: tuple[Any, ...], _result: Any, *, weight_place: int, multiprocessors: int, threads: int
) -> TemporaryBytes:
    """Parts of each gradient, which live until the kernel has ended, and what each is summed through in turn."""
    values, weight, wanted = args[1], args[weight_place], args[-1]
    columns = torch.Size(args[2]).numel()
    if weight is None or not columns:
        return NO_TEMPORARIES
    width = next(each for each in (4, 2, 1) if columns % each == 0)
    sums = Reduction(
        item_bytes=weight.element_size(),
        accumulator_bytes=max(weight.element_size(), FP32_BYTES),
        outputs_per_thread=width,
        multiprocessors=multiprocessors,
        threads_per_multiprocessor=threads,
    )
    rule = LayerGradientParts(multiprocessors=multiprocessors, sums=sums)
    parts, summed = ruled_blocks(rule, values.numel() // columns, columns)
    count = sum(map(bool, wanted[1:]))
    return TemporaryBytes(after_results=(*(parts,) * count, *((summed,),) * count))
