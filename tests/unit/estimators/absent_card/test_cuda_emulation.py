"""CUDA in user code, understood without a card."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.trace_rules import get_torch_obj_rule_map
from torch.optim import _functional as functional
from torch.overrides import TorchFunctionMode

from memplan.devices.cards import find_card
from memplan.estimators.absent_card.cuda_emulation import CudaEmulation


def test_torch_compile_tells_all_stand_ins_apart() -> None:
    with CudaEmulation(find_card("t4"), (7, 5)):
        get_torch_obj_rule_map.__wrapped__()  # raises where one object stands under two names with different rules


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # of another category from 2.14 on
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


def test_the_tensor_types_of_a_card_are_apart_from_those_of_the_cpu_and_work_where_tensors_are() -> None:
    with CudaEmulation(find_card("t4"), (7, 5)):
        indices = torch.ones(2, dtype=torch.long)
        either = torch.LongTensor | torch.cuda.LongTensor
        assert either.__args__ == (torch.LongTensor, torch.cuda.LongTensor)  # one alone would be no union
        assert isinstance(indices, either.__args__)
        assert not isinstance(indices, (torch.cuda.BoolTensor, torch.cuda.FloatTensor))
        assert torch.cuda.HalfTensor([1, 2]).tolist() == [1, 2]
        assert indices.type(torch.cuda.FloatTensor).dtype is torch.float32


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")  # deprecated, and still in old scripts
@pytest.mark.parametrize("by_name", [False, True])
def test_the_tensor_type_of_a_card_can_be_the_default(by_name: bool) -> None:
    before = torch.get_default_dtype()
    try:
        with CudaEmulation(find_card("t4"), (7, 5)):
            torch.set_default_tensor_type("torch.cuda.DoubleTensor" if by_name else torch.cuda.DoubleTensor)
            assert torch.ones(1).dtype is torch.float64
    finally:
        torch.set_default_dtype(before)


class _Overriding(torch.Tensor):
    """Tells that it was asked."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return "asked"


class _OtherMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return "asked"


def test_what_functions_replace_halfway_is_freed_then(monkeypatch: pytest.MonkeyPatch) -> None:
    variance = torch.ones(4)
    original, freed = weakref.ref(variance), []
    log = torch.log
    monkeypatch.setattr(torch, "log", lambda values: (freed.append(original() is None), log(values))[1])
    mean = torch.zeros(4)
    with CudaEmulation(find_card("a100-80gb"), (8, 0)):
        held = [variance]
        del variance
        nn.functional.gaussian_nll_loss(mean, mean, held.pop())
    assert freed == [True]


def test_tensors_and_modes_that_override_functions_are_still_asked() -> None:
    overriding = torch.zeros(4).as_subclass(_Overriding)
    with CudaEmulation(find_card("a100-80gb"), (8, 0)):
        assert nn.functional.dropout(overriding) == "asked"
        assert not nn.functional.has_torch_function_unary(torch.zeros(4))
        with _OtherMode():
            assert nn.functional.dropout(torch.zeros(4)) == "asked"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # of another category from 2.14 on
def test_functions_that_ask_can_be_scripted() -> None:
    def dropped(values: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(values, 0.5, False)

    with CudaEmulation(find_card("a100-80gb"), (8, 0)):
        assert torch.jit.script(dropped)(torch.ones(4)).sum() == 4
