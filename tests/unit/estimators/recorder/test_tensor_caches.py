"""What is taken out of the caches of functions between runs of a step."""

from __future__ import annotations

import functools
import gc

import pytest
import torch

from memplan.estimators.recorder.tensor_caches import clear_tensor_caches


@pytest.mark.parametrize("maxsize", [32, None])
@pytest.mark.parametrize("frozen", [False, True])
def test_functions_that_keep_tensors_make_them_anew(maxsize: int | None, frozen: bool) -> None:
    @functools.lru_cache(maxsize=maxsize)
    def anchors(side: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return torch.zeros(side), {"mask": torch.ones(side)}

    kept = anchors(2)
    if frozen:
        gc.freeze()
    clear_tensor_caches()
    gc.unfreeze()
    assert anchors(2) is not kept


def test_cached_results_without_tensors_are_kept() -> None:
    @functools.lru_cache
    def halves(side: int) -> tuple[float, str]:
        return side / 2, "half"

    kept = halves(2)
    clear_tensor_caches()
    assert gc.get_freeze_count() == 0
    assert halves(2) is kept
