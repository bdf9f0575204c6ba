"""What is taken out of the caches of functions between runs of a step."""

from __future__ import annotations

import functools
import gc

import pytest
import torch

from memplan.estimators.recorder.cached_tensors import forget_cached_tensors


@pytest.mark.parametrize("maxsize", [32, None])
@pytest.mark.parametrize("frozen", [False, True])
def test_functions_that_keep_tensors_make_them_anew(maxsize: int | None, frozen: bool) -> None:
    @functools.lru_cache(maxsize=maxsize)
    def anchors(side: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return torch.zeros(side), {"mask": torch.ones(side)}

    kept = anchors(2)
    if frozen:
        gc.freeze()
    forget_cached_tensors()
    gc.unfreeze()
    assert anchors(2) is not kept


def test_other_results_are_kept() -> None:
    @functools.lru_cache
    def halves(side: int) -> tuple[float, str]:
        return side / 2, "half"

    kept = halves(2)
    forget_cached_tensors()
    assert gc.get_freeze_count() == 0
    assert halves(2) is kept
