"""Fake copies of models, and what of the originals is known of them."""

from __future__ import annotations

import copy
from collections import Counter
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from memplan.errors import WorkloadError
from memplan.estimators.fake_tensors.fake_mode import is_simple
from memplan.estimators.fake_tensors.known_values import remember_value, remember_values
from memplan.estimators.recorder.model_copies import model_copy
from memplan.training.dense_parts import is_on_meta
from memplan.training.skipped_initialisation import LARGE_ELEMENTS

_AUXILIARY = "memplan_auxiliary"
_REGISTRIES = {"_parameters", "_buffers", "_modules"}

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode


def is_scripted(model: nn.Module) -> bool:
    """Whether a part of the model is compiled to TorchScript."""
    return any(isinstance(each, torch.jit.ScriptModule) for each in model.modules())


def fake_copy(model: nn.Module, fakes: TraceFakeMode, *, shares_storages: bool = False) -> nn.Module:
    """Copy a model to fake tensors; tied tensors stay tied, and quantized parameters keep their scales.

    Args:
        model: the real model.
        fakes: the mode of the fake tensors.
        shares_storages: whether parameters that are tied by their ``data`` stay so; a move to a card parts them.

    Raises:
        WorkloadError: it is compiled to TorchScript, whose tensors Python cannot replace.
    """
    if is_scripted(model):
        problem = "TorchScript runs on real tensors only"
        raise WorkloadError(problem) from NotImplementedError(problem)
    subclasses = [each for each in model.parameters() if is_parameter_subclass(each)]
    copies: dict[int, Any] = {id(each): _plain_fake(each, fakes) for each in subclasses}
    shared = _shared_storages(model) if shares_storages else set()
    copies |= {
        id(each): fakes.from_tensor(each) if _storage_of(each) in shared else fakes.from_parameter(each)
        for each in model.parameters()
        if is_simple(each)
    }
    with FakeCopyMode(fakes):
        for each in subclasses:
            attributes = copy.deepcopy(vars(each), copies)
            vars(copies[id(each)]).update(attributes, **{_AUXILIARY: list(_tensors_within(attributes))})
        return model_copy(model, copies)


def _shared_storages(model: nn.Module) -> set[int]:
    """Return the storages that hold several parameters."""
    owners = Counter(_storage_of(each) for each in model.parameters() if is_simple(each))
    return {storage for storage, count in owners.items() if count > 1}


def _storage_of(tensor: torch.Tensor) -> int:
    return id(tensor.untyped_storage())  # its Python object lives as long as the storage itself


def is_parameter_subclass(parameter: nn.Parameter) -> bool:
    """Whether a parameter is of a subclass, as quantization libraries define them."""
    return type(parameter) is not nn.Parameter and not is_lazy(parameter)


def auxiliary_tensors(parameter: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that a parameter subclass holds beside its data, such as scales."""
    found: list[torch.Tensor] = getattr(parameter, _AUXILIARY, [])
    return found


def unregistered_tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the tensors in plain attributes of modules, including those of unregistered submodules."""
    for module in model.modules():
        attributes = {name: value for name, value in vars(module).items() if name != "_modules"}
        for each in tree_leaves(attributes):
            if isinstance(each, torch.Tensor):
                yield each
            elif isinstance(each, nn.Module):
                yield from (*each.parameters(), *each.buffers())


def attributes_left_on_host(fake: nn.Module, real: nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the tensors in plain attributes of a fake model, which a move to a card leaves, and their originals."""
    registered = {_storage_of(each) for each in (*real.parameters(), *real.buffers()) if _has_one_storage(each)}
    for copied, module in zip(fake.modules(), real.modules(), strict=True):
        if type(module)._apply is not nn.Module._apply:  # noqa: SLF001 - by which modules say how they are moved
            continue
        own, copies = vars(module), vars(copied)
        names = [name for name, value in own.items() if name not in _REGISTRIES and _may_hold_tensors(value)]
        for name in names:
            for each, original in zip(tree_leaves(copies.get(name)), tree_leaves(own[name]), strict=False):
                is_left = _has_one_storage(original) and _storage_of(original) not in registered
                if is_left and isinstance(each, FakeTensor):
                    yield each, original


def _may_hold_tensors(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, list | tuple | dict) and len(value) > 0)


def _has_one_storage(value: Any) -> bool:
    return type(value) in {torch.Tensor, nn.Parameter} and value.layout is torch.strided


def _plain_fake(parameter: nn.Parameter, fakes: TraceFakeMode) -> nn.Parameter:
    data = parameter.data.as_subclass(torch.Tensor)
    return nn.Parameter(fakes.from_tensor(data), requires_grad=parameter.requires_grad)


def _tensors_within(attributes: dict[str, Any]) -> Iterator[torch.Tensor]:
    for value in attributes.values():
        if isinstance(value, torch.Tensor):
            yield value
        elif hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
            yield from _tensors_within(vars(value))


def remember_buffers(fake: nn.Module, real: nn.Module) -> None:
    """Make the values of small buffers that are not real numbers known, such as step counters.

    Large ones are not initialised.
    """
    small = [
        (copied, buffer)
        for copied, buffer in zip(fake.buffers(), real.buffers(), strict=True)
        if not buffer.is_floating_point()
        and buffer.layout is torch.strided
        and buffer.untyped_storage().nbytes() < LARGE_ELEMENTS * buffer.itemsize
    ]
    values = copy.deepcopy([buffer for _, buffer in small])  # all at once: views of each other stay so
    for (copied, _), value in zip(small, values, strict=True):
        remember_value(copied, value)


def remember_attributes(fake: nn.Module, real: nn.Module) -> None:
    """Make the values of small tensors in plain attributes known, such as anchors, those of plain objects included."""
    seen: set[int] = set()
    for copied, module in zip(fake.modules(), real.modules(), strict=True):
        copies = vars(copied)
        for name, value in vars(module).items():
            if name not in _REGISTRIES:
                pairs = list(_paired_tensors(copies.get(name), value, seen))
                remember_values([made for made, _ in pairs], [original for _, original in pairs])


def _paired_tensors(copied: Any, original: Any, seen: set[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the tensors that a copy and its original hold at the same place; modules within are not entered."""
    if copied is original or (type(copied) is not type(original) and not isinstance(copied, FakeTensor)):
        return
    if type(original) is torch.Tensor:
        yield copied, original
    elif id(original) in seen or isinstance(original, nn.Module | torch.Tensor):
        return
    elif isinstance(original, list | tuple | dict) or _is_plain_object(original):
        seen.add(id(original))
        for mine, its in zip(_values_within(copied), _values_within(original), strict=False):
            yield from _paired_tensors(mine, its, seen)


def _values_within(holder: Any) -> Sequence[Any]:
    if isinstance(holder, list | tuple):
        return holder
    return list((holder if isinstance(holder, dict) else vars(holder)).values())


def _is_plain_object(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, type | FunctionType | MethodType | ModuleType)


def assign_instead_of_swapping() -> None:
    """Make ``Module.to`` assign the data of fake parameters, for the rest of this process.

    By default it swaps tensor subclasses, which fails for tensors with weak references. What goes to the meta device or
    leaves it takes the parameter's place instead, as with real tensors (``nn.Module._apply``).
    """
    apply: Any = nn.Module._apply  # noqa: SLF001 - what every move of a module comes to
    moved: dict[int, nn.Parameter] = {}

    def assign(parameter: torch.Tensor, converted: nn.Parameter) -> None:
        if is_on_meta(parameter) is not is_on_meta(converted):
            moved[id(parameter)] = converted
        else:
            parameter.data = converted.data

    def applied(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        try:
            made = apply(module, *args, **kwargs)
            replaced = {name: moved[id(each)] for name, each in module._parameters.items() if id(each) in moved}  # noqa: SLF001
            module._parameters.update(replaced)  # noqa: SLF001 - as PyTorch does
            return made
        finally:
            moved.clear()

    torch.utils.swap_tensors = assign
    nn.Module._apply = applied  # type: ignore[assignment]  # noqa: SLF001
