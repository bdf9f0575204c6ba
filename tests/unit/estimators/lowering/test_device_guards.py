"""Fake tensors of a card that is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memplan.estimators.lowering.device_guards import no_card_made_current

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(lambda x: ~x, id="inversion"),
        pytest.param(lambda x: x[0], id="indexing"),
        pytest.param(lambda x: x.to(torch.float32), id="conversion"),
        pytest.param(lambda x: x.clone().copy_(x), id="copies"),
    ],
)
def test_methods_that_make_their_device_the_current_one_run(run: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with FakeTensorMode():
        given = torch.empty(4, 4, dtype=torch.bool, device="cuda")
        with no_card_made_current():
            assert run(given).device == torch.device("cuda", 0)


@pytest.mark.skipif(torch.version.cuda is not None, reason="this build of PyTorch has a guard of its own")
def test_the_guard_is_gone_afterwards() -> None:
    with FakeTensorMode():
        given = torch.empty(4, dtype=torch.bool, device="cuda")
        with no_card_made_current():
            pass
        with pytest.raises(RuntimeError, match="not linked with support for cuda"):
            given.copy_(given)
