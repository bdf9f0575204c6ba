"""Tensors that user code keeps in a ``functools.lru_cache`` from one step to the next, such as anchor boxes."""

from __future__ import annotations

import functools
import gc
from typing import Any

import torch

_LRU_CACHE = functools._lru_cache_wrapper  # noqa: SLF001 - the type of what lru_cache returns, which has no other name
_BOUNDED_CACHE_ENTRY = "_lru_list_elem"
_MAX_DEPTH = 3


def clear_tensor_caches() -> None:
    """Clear every ``lru_cache`` that holds tensors: they are fake, or have the sizes of another run.

    Finds cached tensors, and tuples, lists and dicts of them.
    """
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()  # else get_objects() leaves out what was made before the trace
    for each in gc.get_objects():
        if type(each) is _LRU_CACHE and each.cache_info().currsize and _keeps_tensors(each):
            each.cache_clear()
    if is_frozen:
        gc.freeze()


def _keeps_tensors(cache: Any) -> bool:
    function = cache.__wrapped__
    kept = (each for each in gc.get_referents(cache) if each is not function and each is not vars(cache))
    return any(_holds_tensor(each, _MAX_DEPTH) for each in kept)


def _holds_tensor(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    is_container = type(value) in (tuple, list, dict) or type(value).__name__ == _BOUNDED_CACHE_ENTRY
    return is_container and depth > 0 and any(_holds_tensor(each, depth - 1) for each in gc.get_referents(value))
