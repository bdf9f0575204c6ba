"""The graphs that Dynamo breaks a function into, and the values that they hand on."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import fx, nn

from memplan.estimators.recorder.function_call import FunctionCall
from memplan.estimators.recorder.graph_breaks import (
    BrokenFunction,
    GraphPart,
    PartCall,
    UnfollowedGraphsError,
    broken_by_dynamo,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # of what compile imports
NUMBERS = torch.tensor([1.0, 2.0])


def broken(function: Callable[..., Any], *args: Any) -> tuple[BrokenFunction, tuple[torch.Tensor, ...]]:
    call = FunctionCall(function, args, {})
    return broken_by_dynamo(call, call.tensors), call.tensors


def graphs_of(function: BrokenFunction) -> list[Callable[..., Any]]:
    return [part.graph for part in function.parts]


def test_a_function_without_a_break_is_one_part() -> None:
    def doubled(numbers: torch.Tensor) -> torch.Tensor:
        return 2 * numbers

    function, tensors = broken(doubled, NUMBERS)
    assert [part.inputs for part in function.parts] == [(0,)]
    assert function.results == (1,)
    assert torch.equal(function.run(graphs_of(function), tensors)[0], 2 * NUMBERS)


def test_parts_are_given_what_the_function_was_given_and_what_parts_before_returned() -> None:
    def mixed(numbers: torch.Tensor, others: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        doubled = 2 * numbers
        torch._dynamo.graph_break()
        return doubled + others, doubled

    function, tensors = broken(mixed, NUMBERS, NUMBERS + 1)
    assert [part.inputs for part in function.parts] == [(0,), (2, 1)]
    assert function.results == (3, 2)
    summed, doubled = function.run(graphs_of(function), tensors)
    assert summed.tolist() == [4, 7]
    assert doubled.tolist() == [2, 4]


def test_what_no_later_part_needs_is_released() -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def one_more(numbers: torch.Tensor) -> tuple[torch.Tensor]:
        alive.append(sum(each() is not None for each in made))
        result = numbers + 1
        made.append(weakref.ref(result))
        return (result,)

    alive: list[int] = []
    parts = tuple(
        GraphPart(graph=fx.GraphModule({}, fx.Graph()), inputs=(at,), examples=(NUMBERS,), weight_count=0)
        for at in range(3)
    )
    function = BrokenFunction(parts=parts, results=(3,), result_rest=b"")
    (result,) = function.run([one_more] * 3, (NUMBERS,))
    assert result.tolist() == [4, 5]
    assert alive == [0, 1, 1]  # the third part finds what the second returned, and no longer that of the first


def test_weights_come_first_among_the_tensors_of_a_part() -> None:
    model = nn.Linear(2, 2, bias=False)

    def product(model: nn.Module, numbers: torch.Tensor) -> Any:
        return model(numbers + 1)

    function, _tensors = broken(product, model, NUMBERS)
    (part,) = function.parts
    call = PartCall(part)
    assert call.weight_count == 1
    assert call.tensors[0] is model.weight
    with torch.no_grad():
        assert torch.equal(call.run_on(call.tensors)[0], model(NUMBERS + 1))


def test_tensors_that_code_between_graphs_makes_are_not_followed() -> None:
    @torch.compiler.disable
    def aside(numbers: torch.Tensor) -> torch.Tensor:
        return numbers + 1

    def with_code_between(numbers: torch.Tensor) -> torch.Tensor:
        return 2 * aside(numbers)

    with pytest.raises(UnfollowedGraphsError, match="makes what the second is given"):
        broken(with_code_between, NUMBERS)


def test_graphs_within_what_changes_what_they_keep_are_not_followed() -> None:
    def interrupted(numbers: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return 2 * numbers

    @torch.compiler.disable(recursive=False)
    def without_gradients(numbers: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return interrupted(numbers)

    with pytest.raises(UnfollowedGraphsError, match="changes how it keeps tensors"):
        broken(without_gradients, NUMBERS)


def test_what_dynamo_cannot_run_is_not_followed() -> None:
    def failing(numbers: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        raise ValueError(f"{numbers}")

    with pytest.raises(UnfollowedGraphsError):
        broken(failing, NUMBERS)
