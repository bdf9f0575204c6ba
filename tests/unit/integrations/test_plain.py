"""The decorator that hands a training function its micro-batch, on a plan made beforehand."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

import memplan
from memplan.errors import UsageError
from memplan.integrations import plain
from memplan.recipe import Precision, Recipe
from tests.making import WORKLOAD, plan

if TYPE_CHECKING:
    from memplan.plans import Plan
    from memplan.workload import Workload

NOW = Recipe(micro_batch_size=8, learning_rate=0.1)
FOUND = plan(NOW, Recipe(micro_batch_size=24, accumulation_steps=2, precision="bf16", learning_rate=0.6))


class Asked:
    """What the decorator asked the planner for, and whether the training was watched."""

    def __init__(self) -> None:
        self.workload: Workload | None = None
        self.options: dict[str, Any] = {}
        self.watched: list[Plan] = []


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Answer every question with ``FOUND``, so that what is asked and passed can be looked at."""
    seen = Asked()

    def answer(workload: Workload, **options: Any) -> Plan:
        seen.workload, seen.options = workload, options
        return FOUND

    class Watch:
        def __init__(self, of: Plan) -> None:
            seen.watched.append(of)

        def __enter__(self) -> None:
            """Nothing to begin."""

        def __exit__(self, *_error: object) -> None:
            """Nothing to end."""

    monkeypatch.setattr(plain, "plan", answer)
    monkeypatch.setattr(plain, "watch", Watch)
    return seen


def test_the_function_gets_micro_batch_and_accumulation_before_the_callers_arguments(asked: Asked) -> None:
    @memplan.executable_batch_size(workload=WORKLOAD, recipe=NOW, max_util=0.7)
    def train(batch_size: int, accumulation_steps: int, name: str, *, epochs: int = 1) -> tuple[object, ...]:
        return batch_size, accumulation_steps, name, epochs

    assert train("net", epochs=3) == (24, 2, "net", 3)
    assert asked.workload is WORKLOAD
    assert asked.options == {"recipe": NOW, "precision": Precision.FP32, "max_util": 0.7}
    assert asked.watched == [FOUND]


def test_what_a_function_asks_for_by_name_it_gets(asked: Asked) -> None:
    @memplan.executable_batch_size(workload=WORKLOAD, recipe=NOW)
    def train(batch_size, accumulation_steps, *, precision, learning_rate, plan):
        return precision, learning_rate, plan

    assert train() == ("bf16", 0.6, FOUND)
    assert "precision" not in asked.options  # all that the device has are compared


def test_a_workload_may_depend_on_what_the_function_is_called_with(asked: Asked) -> None:
    made = []

    def make_workload(width: int, *, depth: int) -> Workload:
        made.append((width, depth))
        return WORKLOAD

    @memplan.executable_batch_size(workload=make_workload, recipe=NOW)
    def train(batch_size, accumulation_steps, width, *, depth):
        return width, depth

    assert train(64, depth=2) == (64, 2)
    assert made == [(64, 2)]


def test_a_function_of_another_shape_is_refused_where_it_is_defined() -> None:
    with pytest.raises(UsageError, match=r"train\(batch_size, epochs\) must begin with batch_size, accumulation_steps"):

        @memplan.executable_batch_size(workload=WORKLOAD, recipe=NOW)
        def train(batch_size, epochs): ...


def test_a_caller_cannot_pass_what_is_planned() -> None:
    @memplan.executable_batch_size(workload=WORKLOAD, recipe=NOW)
    def train(batch_size, accumulation_steps): ...

    with pytest.raises(UsageError, match="was called with batch_size="):
        train(batch_size=4)


def test_the_decorated_function_shows_what_its_callers_pass() -> None:
    @memplan.executable_batch_size(workload=WORKLOAD, recipe=NOW)
    def train(batch_size, accumulation_steps, epochs, *, precision):
        """Train."""

    assert str(inspect.signature(train)) == "(epochs)"
    assert train.__doc__ == "Train."


def test_the_decorator_says_what_it_needs() -> None:
    for given in ((), (print,)):
        with pytest.raises(UsageError, match=r"needs to know what is trained; write @memplan.executable_batch_size"):
            memplan.executable_batch_size(*given)
