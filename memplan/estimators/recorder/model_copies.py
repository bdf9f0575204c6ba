"""Copies of models that are whole: functions in them that close over one of the modules close over the copy's."""

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
    """Copy a model with its hooks and replaced methods, whose closures ``copy.deepcopy`` leaves with the original.

    Modules that pickle to code and build themselves from it, which traces that code, are copied as they are. What
    cannot be copied, such as a lock, is shared with the original.

    Args:
        model: the original.
        copies: by the identity of parts, what takes their place in the copy.
    """
    modules = frozenset(map(id, model.modules()))
    copiers: dict[type, Any] = {
        FunctionType: lambda function, memo: (
            _with_copied_cells(function, memo, modules) if _reaches(function, modules, frozenset()) else function
        ),
        **{kind: _copied_as_it_is for kind in map(type, model.modules()) if _pickles_its_own_way(kind)},
    }
    while True:
        try:
            with _copying_by(copiers):
                return copy.deepcopy(model, dict(copies))
        except Exception as error:
            kind = _kind_that_failed(error)
            if kind in copiers or issubclass(kind, torch.Tensor | nn.Module):
                raise
            copiers[kind] = lambda value, _memo: value


def _pickles_its_own_way(kind: type[nn.Module]) -> bool:
    """Whether ``copy.deepcopy`` would make a module anew from what it is pickled to."""
    own = getattr(kind, "__getstate__", None) is not getattr(nn.Module, "__getstate__", None)
    return own and not hasattr(kind, "__deepcopy__")


def _copied_as_it_is(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    made = type(module).__new__(type(module))
    memo[id(module)] = made
    made.__dict__.update(copy.deepcopy(vars(module), memo))
    return made


def _kind_that_failed(error: Exception) -> type:
    """Return the type of the innermost value that was being copied."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return type([frame for frame in frames if frame.f_code is copy.deepcopy.__code__][-1].f_locals["x"])


@contextmanager
def _copying_by(copiers: dict[type, Any]) -> Iterator[None]:
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


def _reaches(value: Any, modules: frozenset[int], passed: frozenset[int]) -> bool:
    """Whether a value is one of the modules, a method of one, or a function that closes over such a value."""
    if not isinstance(value, FunctionType):
        return id(value.__self__ if isinstance(value, MethodType) else value) in modules
    if id(value) in passed:
        return False
    return any(_holds(cell, modules, passed | {id(value)}) for cell in value.__closure__ or ())


def _holds(cell: CellType, modules: frozenset[int], passed: frozenset[int]) -> bool:
    try:
        return _reaches(cell.cell_contents, modules, passed)
    except ValueError:  # an empty cell
        return False
