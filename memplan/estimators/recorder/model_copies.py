"""Deep copies of models, including closures over their modules."""

from __future__ import annotations

import copy
import traceback
from contextlib import contextmanager
from types import CellType, FunctionType, MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_COPIERS: dict[type, Any] = copy._deepcopy_dispatch  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way


def model_copy(model: nn.Module, copies: Mapping[int, Any] = MappingProxyType({})) -> nn.Module:
    """Copy a model with its hooks and replaced methods, whose closures ``copy.deepcopy`` would share.

    Hooks and attributes of parameters are copied, too, which ``copy.deepcopy`` would drop.
    Modules with a ``__getstate__`` of their own are copied attribute by attribute, because some rebuild and retrace
    themselves. Values that cannot be copied, such as locks, are shared.

    Args:
        model: the original.
        copies: replacements for parts of the model, by their ``id``.
    """
    modules = frozenset(map(id, model.modules()))
    copiers: dict[type, Any] = {
        FunctionType: lambda function, memo: (
            _with_copied_cells(function, memo, modules) if _reaches(function, modules, frozenset()) else function
        ),
        **{kind: _attributewise_copy for kind in map(type, model.modules()) if _has_own_getstate(kind)},
    }
    while True:
        try:
            with _copying_with(copiers):
                memo = dict(copies)
                made = copy.deepcopy(model, memo)
                for each in model.parameters():
                    if id(each) in memo:
                        _complete_parameter(memo[id(each)], each, memo)
                return made
        except Exception as error:
            kind = _uncopyable_type(error)
            if kind in copiers or issubclass(kind, torch.Tensor | nn.Module):
                raise
            copiers[kind] = lambda value, _memo: value


def _complete_parameter(copied: nn.Parameter, original: nn.Parameter, memo: dict[int, Any]) -> None:
    """Give a copied parameter what was set on the original from Python."""
    missing = {name: value for name, value in vars(original).items() if name not in vars(copied)}
    vars(copied).update(copy.deepcopy(missing, memo))
    for hooks, register in (
        ("_backward_hooks", copied.register_hook),
        ("_post_accumulate_grad_hooks", copied.register_post_accumulate_grad_hook),
    ):
        for hook in (getattr(original, hooks) or {}).values():
            register(copy.deepcopy(hook, memo))  # type: ignore[no-untyped-call]  # untyped in torch


def _has_own_getstate(kind: type[nn.Module]) -> bool:
    """Whether ``copy.deepcopy`` would rebuild a module from its own pickled state."""
    own = getattr(kind, "__getstate__", None) is not getattr(nn.Module, "__getstate__", None)
    return own and not hasattr(kind, "__deepcopy__")


def _attributewise_copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    made = type(module).__new__(type(module))
    memo[id(module)] = made
    made.__dict__.update(copy.deepcopy(vars(module), memo))
    return made


def _uncopyable_type(error: Exception) -> type:
    """Return the type of the innermost value that was being copied."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return type([frame for frame in frames if frame.f_code is copy.deepcopy.__code__][-1].f_locals["x"])


@contextmanager
def _copying_with(copiers: dict[type, Any]) -> Iterator[None]:
    before = dict(_COPIERS)
    _COPIERS.update(copiers)
    try:
        yield
    finally:
        _COPIERS.clear()
        _COPIERS.update(before)


def _with_copied_cells(function: FunctionType, memo: dict[int, Any], modules: frozenset[int]) -> FunctionType:
    closure = function.__closure__ or ()
    cells = [CellType() if _holds(cell, modules, frozenset()) else cell for cell in closure]
    made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells))
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    memo[id(function)] = made  # before its cells, because a function may hold itself
    for cell, original in zip(cells, closure, strict=True):
        if cell is not original:
            cell.cell_contents = copy.deepcopy(original.cell_contents, memo)
    return made


def _reaches(value: Any, modules: frozenset[int], visited: frozenset[int]) -> bool:
    """Whether a value is one of the modules, a method of one, or a function whose closure holds such a value."""
    if not isinstance(value, FunctionType):
        return id(value.__self__ if isinstance(value, MethodType) else value) in modules
    if id(value) in visited:
        return False
    return any(_holds(cell, modules, visited | {id(value)}) for cell in value.__closure__ or ())


def _holds(cell: CellType, modules: frozenset[int], visited: frozenset[int]) -> bool:
    try:
        return _reaches(cell.cell_contents, modules, visited)
    except ValueError:  # an empty cell
        return False
