"""Tensors that functions keep in a ``functools.lru_cache`` from one run of a step to the next, such as anchors."""

from __future__ import annotations

import functools
import gc
from typing import Any

import torch

_CACHE = functools._lru_cache_wrapper  # noqa: SLF001 - the type of what lru_cache returns, which has no other name
_BOUNDED_RESULT = "_lru_list_elem"
_DEEPEST_RESULT = 3


def clear_tensor_caches() -> None:
    """Empty every cache of a function that returned tensors: they are fake, or belong to a step of other sizes.

    Only results that are tensors, or tuples, lists and dicts of them, are found.
    """
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()  # else what was there before the trace is not among the objects
    for each in gc.get_objects():
        if type(each) is _CACHE and each.cache_info().currsize and _keeps_tensors(each):
            each.cache_clear()
    if is_frozen:
        gc.freeze()


def _keeps_tensors(cache: Any) -> bool:
    function = cache.__wrapped__
    kept = (each for each in gc.get_referents(cache) if each is not function and each is not vars(cache))
    return any(_holds_tensor(each, _DEEPEST_RESULT) for each in kept)


def _holds_tensor(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    is_container = type(value) in (tuple, list, dict) or type(value).__name__ == _BOUNDED_RESULT
    return is_container and depth > 0 and any(_holds_tensor(each, depth - 1) for each in gc.get_referents(value))
