"""Functions of compiled extensions on a card that is not there: kernels that PyTorch's dispatcher does not know.

Such a function gets tensors and writes to them, or returns new ones; its signature, which pybind11 writes into its
docstring, tells which. What writes only is left out, and named as not counted, since it may allocate inside; what
returns something is left out where a rule says what it allocates, and refuses fake tensors elsewhere.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from importlib.machinery import ExtensionFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from memplan.estimators.absent_card.mmcv_operators import MMCV_OPERATORS
from memplan.estimators.fake_tensors.known_values import forget_values
from memplan.estimators.fake_tensors.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_MMCV = "mmcv._ext"
_RULES: Mapping[str, Mapping[str, Callable[..., Any]]] = {_MMCV: MMCV_OPERATORS}
_PYTORCH = "torch"
# Packages that run mmcv's operators on tensors of a card, and slower code of their own elsewhere.
_USING_MMCV = frozenset({"mmcv", "mmdet", "mmseg", "mmpretrain", "mmpose", "mmaction", "mmdet3d", "mmrotate", "mmyolo"})
_MMCV_SEES_CARD = "IS_CUDA_AVAILABLE"  # a constant of modules of mmcv


def runs_followed_operators(module: str) -> bool:
    """Whether a module's package runs compiled operators that are followed, so that it may see tensors on a card."""
    return module.partition(".")[0] in _USING_MMCV and _MMCV in sys.modules


@contextmanager
def absent_extension_kernels(tell_uncounted: Callable[[str], None]) -> Iterator[None]:
    """Leave kernels of the extensions loaded so far out where they get fake tensors, while the context is open.

    Args:
        tell_uncounted: is told the name of each function that is left out without knowing what it allocates.
    """
    stand_ins = {
        id(function): _leaving_out(f"{module.__name__}.{name}", function, rule, tell_uncounted)
        for module in _extensions()
        for name, function, rule in _functions_of_tensors(module)
    }
    with ExitStack() as stack:
        for module, name, value in _references(stand_ins.keys()) if stand_ins else ():
            stack.enter_context(replaced(module, name, stand_ins[id(value)]))
        for module in _loaded_modules() if _MMCV in sys.modules else ():
            if module.__name__.startswith("mmcv.ops.") and hasattr(module, _MMCV_SEES_CARD):
                stack.enter_context(replaced(module, _MMCV_SEES_CARD, True))
        yield


def _loaded_modules() -> list[ModuleType]:
    return [each for each in list(sys.modules.values()) if isinstance(each, ModuleType)]


def _extensions() -> Iterator[ModuleType]:
    for module in _loaded_modules():
        loader = getattr(getattr(module, "__spec__", None), "loader", None)
        is_pytorch = module.__name__.partition(".")[0] == _PYTORCH
        if module.__name__ in _RULES or (isinstance(loader, ExtensionFileLoader) and not is_pytorch):
            yield module


def _functions_of_tensors(module: ModuleType) -> Iterator[tuple[str, Any, Callable[..., Any] | None]]:
    """Yield the functions of an extension that take tensors, with their names and rules."""
    rules = _RULES.get(module.__name__, {})
    for name, value in vars(module).items():
        if name in rules:
            yield name, value, rules[name]
        elif callable(value) and not isinstance(value, type) and "torch.Tensor" in (value.__doc__ or ""):
            yield name, value, None


def _references(functions: Any) -> Iterator[tuple[ModuleType, str, Any]]:
    """Yield the names by which modules know the functions."""
    for module in _loaded_modules():
        if module.__name__.partition(".")[0] != _PYTORCH:
            for name, value in list(vars(module).items()):
                if id(value) in functions:
                    yield module, name, value


def _leaving_out(
    name: str, function: Any, rule: Callable[..., Any] | None, tell_uncounted: Callable[[str], None]
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        fakes = [each for each in tree_leaves((args, kwargs)) if isinstance(each, FakeTensor)]
        if not fakes:
            return function(*args, **kwargs)
        if rule is not None:
            found = rule(*args, **kwargs)
            forget_values([each for each in fakes if each.is_floating_point()])  # others are sizes and indices
            return found
        if not _only_writes(function):
            raise NotImplementedError(f"{name} of a compiled extension returns what only running it tells")
        tell_uncounted(name)
        forget_values(fakes)
        return None

    return call


def _only_writes(function: Any) -> bool:
    """Whether a function returns nothing, by each of its signatures."""
    lines = [line for line in (function.__doc__ or "").splitlines() if "->" in line]
    return bool(lines) and all(line.rpartition("->")[2].strip() == "None" for line in lines)
