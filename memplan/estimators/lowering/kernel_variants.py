"""The variants of a kernel that Inductor times before it first runs, by its own rules."""

from __future__ import annotations

import ast
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor.runtime import hints, triton_heuristics

from memplan.estimators.absent_card.card_answers import always
from memplan.estimators.fake_tensors.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOPS = ("pointwise", "reduction", "persistent_reduction", "cooperative_reduction", "split_scan")
_ONE_VARIANT = ("foreach", "template", "fixed_config")  # which have one, unless they are searched for


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedKernel:
    """A kernel of which several variants are timed.

    Args:
        variant_count: how many; those that a search will find are not counted.
        changed: places of the tensors that it changes, rather than just writes, among those that it is given.
        within_peak: whether copies of these are made only where they fit below the peak so far.
    """

    variant_count: int
    changed: tuple[int, ...]
    within_peak: bool


class _Variant:
    """Stands for ``triton.Config``, as Triton need not be installed."""

    def __init__(self, kwargs: dict[str, int], num_warps: int = 4, num_stages: int = 2, **_: Any) -> None:
        self.kwargs = kwargs
        self.num_warps = num_warps
        self.num_stages = num_stages


def timed_kernel(source: str) -> TimedKernel | None:
    """Return what is timed of a kernel; None if there is one variant of it.

    Args:
        source: the code that Inductor wrote for it.
    """
    *_helpers, function = (each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef))
    loops: list[tuple[str, dict[str, Any]]] = []
    for each in function.decorator_list:
        if isinstance(each, ast.Call):
            eval(compile(ast.Expression(each), "<kernel of Inductor>", "eval"), _names(loops))  # noqa: S307 - Inductor's own code
    if not loops:
        return None
    ((loop, settings),) = loops
    meta = settings["inductor_meta"]
    variant_count = _variant_count(loop, settings)
    if variant_count < 2 and not meta.get("coordinate_descent_tuning"):
        return None
    names = [each.arg for each in function.args.args]
    return TimedKernel(
        variant_count=variant_count,
        changed=tuple(names.index(each) for each in meta.get("mutated_arg_names", ())),
        within_peak=meta.get("optimize_mem", True),
    )


def _names(loops: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return what a kernel's decorators find under their names; loops put themselves into a list, with settings."""

    def noting(loop: str) -> Callable[..., None]:
        return lambda **settings: loops.append((loop, settings))

    heuristics = SimpleNamespace(**{each: noting(each) for each in _LOOPS}, **dict.fromkeys(_ONE_VARIANT, always(None)))
    return {
        **vars(hints),
        "triton_heuristics": heuristics,
        "AttrsDescriptor": always(None),  # by which it is described where there is no Triton
        "torch": torch,
        "__file__": "",
    }


def _variant_count(loop: str, settings: dict[str, Any]) -> int:
    counts: list[int] = []

    def count(_size_hints: Any, configs: list[_Variant], *_: Any, **__: Any) -> None:
        unique = {(*sorted(each.kwargs.items()), each.num_warps, each.num_stages) for each in configs}
        counts.append(len(unique))

    with ExitStack() as stack:
        for name in filter(vars(triton_heuristics).get, ("Config", "InductorConfig")):
            stack.enter_context(replaced(triton_heuristics, name, _Variant))
        stack.enter_context(replaced(triton_heuristics, "cached_autotune", count))
        getattr(triton_heuristics, loop)(**settings)
    return counts[0]
