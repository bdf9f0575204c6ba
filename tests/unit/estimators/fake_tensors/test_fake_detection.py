"""What fake tensors answer to code that looks at the tensor."""

from __future__ import annotations

import pytest
import torch
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
    known, unknown = (fakes.from_tensor(torch.empty((), dtype=torch.long)) for _ in range(2))
    remember_values([known], [torch.tensor(3)])
    with fakes, hiding_fakes():
        assert f"expert_{known}" == "expert_3"
        assert f"{known:04d}" == "0003"
        with pytest.raises(DataDependentOutputException):
            f"{unknown:04d}"


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
