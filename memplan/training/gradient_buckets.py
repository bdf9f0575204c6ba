"""The flat communication buffers (buckets) that ``DistributedDataParallel`` keeps beside the gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from memplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memplan.recipe import Recipe
    from memplan.workload import Workload

# torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.hpp of torch 2.13
_BUCKET_BYTES = 25 * MIB
_FIRST_BUCKET_BYTES = MIB


def make_buckets(
    model: torch.nn.Module, workload: Workload, recipe: Recipe, device: torch.device | None = None
) -> list[torch.Tensor]:
    """Return tensors as large as the buckets that a replica keeps; none where there is one, or where it holds shards.

    Args:
        model: the model that is trained.
        workload: says whether it is sharded.
        recipe: says how many replicas there are.
        device: where the buckets lie; None for PyTorch's own default.
    """
    if recipe.world_size == 1 or workload.spans_replicas:
        return []
    trained = (each for each in model.parameters() if each.requires_grad)
    sizes = bucket_sizes(each.numel() * each.element_size() for each in trained)
    return [torch.zeros(size, dtype=torch.uint8, device=device) for size in sizes]


def bucket_sizes(gradients_bytes: Iterable[int]) -> list[int]:
    """Return the bytes of each bucket; buckets live as long as the wrapped model.

    A bucket takes whole gradients, last parameter first, until it is full. ``gradient_as_bucket_view``, which puts the
    gradients themselves into the buckets, is not assumed.

    Args:
        gradients_bytes: bytes of each trained parameter's gradient, in the order of the parameters.
    """
    buckets: list[int] = []
    filling = 0
    for size in reversed(list(gradients_bytes)):
        filling += size
        if filling >= (_BUCKET_BYTES if buckets else _FIRST_BUCKET_BYTES):
            buckets.append(filling)
            filling = 0
    return [*buckets, filling] if filling else buckets
