"""Copies of models whose functions close over their modules."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch
from torch import nn

from memplan.estimators.recorder.model_copies import model_copy


class Features(nn.Module):
    """Keeps what a layer returned last, by a hook that closes over the model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.kept: list[torch.Tensor] = []
        self.layer.register_forward_hook(lambda _module, _inputs, output: self.kept.append(output))


def test_a_hook_that_closes_over_the_model_sees_the_copy() -> None:
    original = Features()
    copied: Any = model_copy(original)
    copied.layer(torch.ones(1, 2))
    assert (len(copied.kept), len(original.kept)) == (1, 0)


def test_hooks_and_marks_of_a_parameter_are_those_of_its_copy() -> None:
    model = nn.Linear(4, 4, bias=False)
    model.weight.sums = []
    model.weight.register_hook(lambda slope: slope * 2)
    model.weight.register_post_accumulate_grad_hook(lambda weight: model.weight.sums.append(weight.grad.sum().item()))
    copied = model_copy(model)
    copied(torch.ones(1, 4)).sum().backward()
    assert copied.weight.sums == [32.0]
    assert model.weight.sums == []


def test_a_replaced_method_calls_what_it_replaced_of_the_copy() -> None:
    original: Any = nn.Linear(2, 2)
    replaced = original.forward

    def doubled(inputs: torch.Tensor) -> torch.Tensor:
        return 2 * replaced(inputs)

    original.forward = doubled
    copied = model_copy(original)
    copied(torch.ones(1, 2)).sum().backward()
    assert copied.weight.grad is not None
    assert original.weight.grad is None


def test_a_function_that_calls_itself_is_copied_once() -> None:
    original: Any = nn.Linear(2, 2)

    def nested(depth: int) -> nn.Module:
        return nested(depth - 1) if depth else original

    original.nested = nested
    copied: Any = model_copy(original)
    assert copied.nested(3) is copied


def test_functions_that_close_over_nothing_of_the_model_stay_as_they_are() -> None:
    other = nn.Linear(2, 2)
    original: Any = nn.Linear(2, 2)
    original.elsewhere = lambda: other
    copied: Any = model_copy(original)
    assert copied.elsewhere is original.elsewhere


def test_what_cannot_be_copied_is_shared() -> None:
    original: Any = nn.Linear(2, 2)
    original.lock, original.library = threading.Lock(), math
    copied: Any = model_copy(original)
    assert copied.lock is original.lock
    assert copied.library is math
    assert copied.weight is not original.weight


def test_a_module_that_cannot_be_copied_is_no_reason_to_share_it() -> None:
    class Single(nn.Linear):
        def __deepcopy__(self, _memo: object) -> nn.Module:
            raise TypeError("one of these is enough")

    with pytest.raises(TypeError, match="one of these is enough"):
        model_copy(nn.Sequential(Single(2, 2)))


class Rebuilt(nn.Module):
    """Is pickled without what it runs, and would trace that anew, as modules of generated code do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.traced = torch.fx.symbolic_trace(lambda tensor: torch.functional.broadcast_tensors(tensor, tensor)[0])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_modules"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise AssertionError("what it runs is traced anew")


def test_a_module_that_builds_itself_from_what_it_is_pickled_to_is_copied_as_it_is() -> None:
    original = Rebuilt()
    copied = model_copy(nn.Sequential(original, original))
    assert isinstance(copied, nn.Sequential)
    assert copied[0] is copied[1]
    assert copied[0].weight is not original.weight
    assert torch.equal(copied[0].traced(torch.ones(2)), torch.ones(2))
