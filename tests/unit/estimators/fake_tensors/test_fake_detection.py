"""What fake tensors answer to code that looks at the tensor."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.nn.attention.bias import CausalBias, causal_lower_right

from memplan.estimators.fake_tensors.fake_detection import hiding_fakes
from memplan.estimators.fake_tensors.known_values import remember_values


@pytest.fixture
def fakes() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def test_transformers_does_not_take_a_step_for_a_compilers_trace(fakes: FakeTensorMode) -> None:
    import_utils = pytest.importorskip("transformers", reason="needs memplan[transformers]").utils.import_utils
    mask = fakes.from_tensor(torch.ones(2, 3))
    with hiding_fakes():
        assert not import_utils.is_tracing(mask)
    assert import_utils.is_tracing(mask)


def test_of_numbers_that_are_not_known_no_tensor_is_made(fakes: FakeTensorMode) -> None:
    unknown = fakes.from_tensor(torch.empty((), dtype=torch.long))
    with fakes, hiding_fakes(), pytest.raises(RuntimeError, match="data is not allocated"):
        torch.tensor([unknown])


def test_a_module_is_found_by_the_number_of_a_tensor(fakes: FakeTensorMode) -> None:
    known = fakes.from_tensor(torch.empty((), dtype=torch.long))
    remember_values([known], [torch.tensor(3)])
    with fakes, hiding_fakes():
        unknown = torch.empty((), dtype=torch.long)
        assert f"expert_{known}" == "expert_3"
        assert f"{known:04d}" == "0003"
        with pytest.raises(DataDependentOutputException):
            f"{unknown:04d}"


def test_a_module_that_a_step_copies_is_cloned(fakes: FakeTensorMode) -> None:
    with fakes, hiding_fakes():
        module = nn.BatchNorm1d(8)
        module.tied = module.weight
        copied = copy.deepcopy(module)
        slope = (copied(torch.zeros(2, 8)) * 2).sum()
        with pytest.raises(RuntimeError, match="created explicitly by the user"):
            copy.deepcopy(slope)
    assert [type(each) for each in (copied.weight, copied.running_mean)] == [FakeTensor, FakeTensor]
    assert isinstance(copied.weight, nn.Parameter)
    assert copied.tied is copied.weight is not module.weight
    assert copied.running_mean.untyped_storage() is not module.running_mean.untyped_storage()


def test_the_gradient_of_a_tensor_is_copied_with_it(fakes: FakeTensorMode) -> None:
    with fakes, hiding_fakes():
        tensor = torch.zeros(8, requires_grad=True)
        tensor.sum().backward()
        copied = copy.deepcopy(tensor)
    assert copied.requires_grad
    assert copied.grad is not tensor.grad
    assert copied.grad.shape == (8,)


def test_a_causal_bias_is_made_as_where_nothing_is_traced(fakes: FakeTensorMode) -> None:
    query, key = (fakes.from_tensor(torch.empty(1, 1, length, 8)) for length in (2, 4))
    with fakes, hiding_fakes():
        bias = causal_lower_right(2, 4)
        attended = functional.scaled_dot_product_attention(query, key, key, attn_mask=bias)
    assert (bias.seq_len_q, bias.seq_len_kv) == (2, 4)
    assert attended.shape == (1, 1, 2, 8)


def test_torchs_own_answers_are_there_again_afterwards() -> None:
    with hiding_fakes():
        assert "__index__" in vars(FakeTensor)
    assert "__index__" not in vars(FakeTensor)
    assert "__new__" not in vars(CausalBias)
