"""CUDA in user code, understood without a card."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.trace_rules import get_torch_obj_rule_map
from torch.optim import _functional as functional

from memplan.devices.cards import find_card
from memplan.estimators.absent_card.cuda_emulation import CudaEmulation


def test_torch_compile_tells_all_stand_ins_apart() -> None:
    with CudaEmulation(find_card("t4"), (7, 5)):
        get_torch_obj_rule_map.__wrapped__()  # raises where one object stands under two names with different rules


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # of another category from 2.15 on
def test_optimizers_can_be_scripted_as_importing_torch_distributed_optim_does() -> None:
    with CudaEmulation(find_card("t4"), (7, 5)):
        torch.jit.script(functional.rprop)  # raises where it cannot be compiled with all that it calls


def test_everything_is_itself_again_outside() -> None:
    before = (torch.cuda.Stream, torch.cuda.synchronize, torch.Tensor.record_stream, torch.accelerator.is_available)
    with CudaEmulation(find_card("t4"), (7, 5)):
        assert torch.cuda.Stream is not before[0]
    assert (
        torch.cuda.Stream,
        torch.cuda.synchronize,
        torch.Tensor.record_stream,
        torch.accelerator.is_available,
    ) == before
