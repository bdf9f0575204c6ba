"""Training scripts without a framework: a decorator that passes a training function its micro-batch."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from memplan.api import plan
from memplan.errors import UsageError
from memplan.watching import watch
from memplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan.integrations.tuning import PlanOptions
    from memplan.plans import Plan
    from memplan.recipe import Recipe

T = TypeVar("T")
_FIRST = ("batch_size", "accumulation_steps")
# Further arguments that a training function may take by name.
_ON_REQUEST = ("precision", "learning_rate", "plan")


def executable_batch_size(
    *given: object,
    workload: Workload | Callable[..., Workload] | None = None,
    recipe: Recipe | None = None,
    **options: Unpack[PlanOptions],
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Plan the batch of a training function before it runs, and call it with what was found.

    Its form is that of accelerate's ``find_executable_batch_size``, which runs a function until it no longer runs out
    of memory. Here the function runs once: the workload is tried in child processes, and nothing in this process is
    touched until the batch is known. Running out of memory after all is an error like any other, without a retry. ::

        @memplan.executable_batch_size(workload=make_workload, recipe=memplan.Recipe(micro_batch_size=8), max_util=0.8)
        def train(batch_size, accumulation_steps, epochs): ...

        train(epochs=3)

    The function's first two parameters are ``batch_size`` and ``accumulation_steps``, and callers leave them out. It
    also gets ``precision``, ``learning_rate`` and ``plan`` if it has parameters of these names. Without ``precision``,
    only the recipe's own is tried. Without ``learning_rate``, scaling the rate with the batch is left to the function;
    ``global_batch`` keeps the samples of a step. While the function runs, :func:`memplan.watch` compares its peak with
    the plan.

    Args:
        given: nothing; the function to decorate is not given with the options.
        workload: what it trains, or a function that returns the workload and is called with the caller's arguments.
        recipe: its current setting; the micro-batch is tried first.
        options: as for :func:`memplan.plan`: ``max_util``, ``device``, ``budget``, ``global_batch``, ...

    Raises:
        UsageError: ``workload`` or ``recipe`` is missing, the function does not begin with these parameters, or a
            caller passes one of them.
    """
    if given or workload is None or recipe is None:
        raise UsageError(
            "executable_batch_size needs to know what is trained",
            hint="write @memplan.executable_batch_size(workload=..., recipe=memplan.Recipe(micro_batch_size=...))",
        )
    trained, current = workload, recipe  # neither is None any more, which closures do not know of the parameters

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        wanted = _requested(function)
        wishes: PlanOptions = options if "precision" in wanted else {"precision": current.precision, **options}

        @functools.wraps(function)
        def planned(*arguments: Any, **named: Any) -> T:
            _refuse_what_is_planned(function, (*_FIRST, *wanted), named)
            made = trained if isinstance(trained, Workload) else trained(*arguments, **named)
            found = plan(made, recipe=current, **wishes)
            with watch(found):
                return function(*_first_values(found), *arguments, **_further_values(found, wanted), **named)

        vars(planned)["__signature__"] = _signature_without(function, (*_FIRST, *wanted))
        return planned

    return decorate


def _requested(function: Callable[..., object]) -> tuple[str, ...]:
    """Check a training function's first two parameters, and return which further arguments it takes."""
    names = tuple(inspect.signature(function).parameters)
    if names[:2] != _FIRST:
        raise UsageError(
            f"{function.__qualname__}({', '.join(names)}) must begin with {', '.join(_FIRST)}",
            hint="memplan passes them, in this order",
        )
    return tuple(name for name in _ON_REQUEST if name in names)


def _refuse_what_is_planned(function: Callable[..., object], planned: tuple[str, ...], named: dict[str, Any]) -> None:
    for name in planned:
        if name in named:
            raise UsageError(f"{function.__qualname__} was called with {name}=, which memplan passes")


def _first_values(found: Plan) -> tuple[int, int]:
    return found.recipe.micro_batch_size, found.recipe.accumulation_steps


def _further_values(found: Plan, wanted: tuple[str, ...]) -> dict[str, Any]:
    recipe = found.recipe
    values = {"precision": str(recipe.precision), "learning_rate": recipe.learning_rate, "plan": found}
    return {name: values[name] for name in wanted}


def _signature_without(function: Callable[..., object], planned: tuple[str, ...]) -> inspect.Signature:
    """Return a function's signature as its callers see it."""
    signature = inspect.signature(function)
    return signature.replace(parameters=[each for name, each in signature.parameters.items() if name not in planned])
