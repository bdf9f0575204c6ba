"""What is said to a user whose function raised."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from memplan.errors import WorkloadError
from memplan.estimators.recorder.user_calls import call_user, copied_model, is_fake_tensor_failure
from memplan.textfiles import require_place_for


def wraps_without_a_group() -> nn.Module:
    return nn.parallel.DistributedDataParallel(nn.Linear(2, 2))


def makes_the_group_again() -> None:
    raise ValueError("trying to initialize the default process group twice!")


def asks_the_launcher() -> int:
    return int({}["WORLD_SIZE"])


def makes_weights_on_meta() -> torch.Tensor:
    return nn.Linear(2, 2, device="meta")(torch.zeros(1, 2))


def gathers_without_a_group() -> None:
    raise ValueError("Unsupported group type: <class 'NoneType'>, None")


def keeps_what_is_computed() -> None:
    criterion = nn.Linear(2, 2)
    with FakeTensorMode():
        criterion.weight.data = torch.zeros(2, 2)
    criterion.weight.to("cpu")


def asks_the_gpu() -> None:
    raise AssertionError("Torch not compiled with CUDA enabled")


def steps_without_a_closure() -> None:
    torch.optim.LBFGS([torch.zeros(1)]).step()


def test_a_function_of_memplans_own_is_named_by_its_role_only() -> None:
    with pytest.raises(WorkloadError) as caught:
        call_user("model factory", require_place_for, None)
    assert caught.value.problem.startswith("the workload's model factory raised: AttributeError: ")


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (wraps_without_a_group, "wrap no model"),
        (makes_the_group_again, "in a process group of the replicas already"),
        (asks_the_launcher, "ask torch.distributed for rank and size"),
        (makes_weights_on_meta, "make the model on the CPU"),
        (gathers_without_a_group, "gather only if torch.distributed.is_initialized"),
        (keeps_what_is_computed, "part of the model"),
        (asks_the_gpu, "no GPU is visible"),
        (steps_without_a_closure, "needs no closure"),
    ],
)
def test_a_common_mistake_comes_with_what_to_do(function: object, hint: str) -> None:
    with pytest.raises(WorkloadError, match=hint) as caught:
        call_user("function", function)
    assert function.__name__ in str(caught.value)
    assert caught.value.where is not None


def is_ragged() -> None:
    with FakeTensorMode():
        torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(1, 3)], layout=torch.jagged)


def asserts_what_is_not_so() -> None:
    assert torch.zeros(2).sum() == 1, "not so"


@pytest.mark.parametrize(("function", "is_theirs"), [(is_ragged, True), (asserts_what_is_not_so, False)])
def test_an_assertion_of_fake_tensors_own_is_told_from_the_users(function: object, is_theirs: bool) -> None:
    with pytest.raises(WorkloadError) as caught:
        call_user("function", function)
    assert isinstance(caught.value.__cause__, AssertionError)
    assert is_fake_tensor_failure(caught.value) is is_theirs


def selects_by_bytes() -> None:
    with FakeTensorMode():
        torch.zeros(2)[torch.ones(2, dtype=torch.uint8)]


def reads_memory_that_fakes_do_not_have() -> None:
    with FakeTensorMode():
        torch.tensor([torch.zeros(())])


def nests() -> None:
    with FakeTensorMode(allow_fallback_kernels=True):
        torch._nested_tensor_from_mask(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (selects_by_bytes, "byte or bool"),
        (reads_memory_that_fakes_do_not_have, "not allocated"),
        (nests, "NestedTensorImpl"),
    ],
)
def test_what_only_fake_tensors_refuse_is_told_from_the_users(function: object, message: str) -> None:
    with pytest.raises(WorkloadError, match=message) as caught:
        call_user("function", function)
    assert is_fake_tensor_failure(caught.value)


class Single(nn.Identity):
    def __deepcopy__(self, _memo: object) -> nn.Module:
        raise TypeError("one of these is enough")


def test_a_model_that_refuses_to_be_copied_is_named_with_what_to_do() -> None:
    with pytest.raises(WorkloadError, match=r"model Single cannot be copied.*one of these is enough") as caught:
        copied_model(Single(), copy.deepcopy)
    assert caught.value.where
    assert "__deepcopy__" in str(caught.value.hint)
