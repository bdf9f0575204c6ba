"""A call of a function that the user compiled, and what decides whether two calls run the same graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PLAIN = (bool, int, float, str)
_PLACES = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number", "block_idx", "idx", "index"})


class FunctionCall:
    """A call of a function with the weights of the modules that it runs.

    Args:
        function: what is called; modules are found behind it as its owner, and among its arguments.
        args: positional arguments.
        kwargs: arguments by name.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._function = function
        self._leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self._places = [at for at, each in enumerate(self._leaves) if isinstance(each, torch.Tensor)]
        self._modules = modules_behind(function, self._leaves)
        self._slots = _slots_in(self._modules)
        weights = {id(tensor): tensor for tensor in _tensors_at(self._slots)}
        self._identities = tuple(weights)
        self.weight_count = len(weights)
        self.tensors: tuple[torch.Tensor, ...] = (*weights.values(), *(self._leaves[at] for at in self._places))

    @property
    def code_key(self) -> Any:
        """What tells the function's code, for tensors of any shape; modules that are alike share it, as layers are."""
        is_own = (torch.Tensor, nn.Module)
        return (
            getattr(self._function, "__func__", self._function),
            tuple(map(_structure, self._modules)),
            self._spec,
            tuple(None if isinstance(each, is_own) else each for each in self._leaves),
        )

    @property
    def key(self) -> Any:
        """What the function's graphs hold for."""
        return (
            self.code_key,
            kinds_of(self.tensors),
            modes_of_operators(),
        )

    def run_on(
        self,
        tensors: Sequence[torch.Tensor],
        wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
    ) -> Any:
        """Call the function, or what is made of it, with other tensors in the place of its own."""
        leaves = list(self._leaves)
        for at, each in zip(self._places, tensors[self.weight_count :], strict=True):
            leaves[at] = each
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        given = dict(zip(self._identities, tensors[: self.weight_count], strict=True))
        own = [(holder, name, holder[name]) for holder, name in self._slots]
        try:
            for holder, name, tensor in own:
                holder[name] = given[id(tensor)]
            return wrap(self._function)(*args, **kwargs)
        finally:
            for holder, name, tensor in own:
                holder[name] = tensor


def modules_behind(function: Callable[..., Any], leaves: Sequence[Any]) -> tuple[nn.Module, ...]:
    """Return the modules that a function can reach: its owner, what it closes over, its globals, and its arguments."""
    code = getattr(function, "__code__", None)
    reached = [
        getattr(function, "__self__", None),
        *(each.cell_contents for each in getattr(function, "__closure__", None) or ()),
        *(getattr(function, "__globals__", {}).get(name) for name in (code.co_names if code else ())),
        *leaves,
    ]
    return tuple(dict.fromkeys(each for each in reached if isinstance(each, nn.Module)))


def weights_of(modules: Sequence[nn.Module]) -> Iterator[torch.Tensor]:
    """Yield the weights and buffers of modules and of those inside them, as they are now."""
    return _tensors_at(_slots_in(modules))


def kinds_of(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Return what graphs hold for of the tensors that they are given, whose values are not known."""
    return tuple((type(each), each.shape, each.stride(), each.dtype, each.requires_grad) for each in tensors)


def modes_of_operators() -> tuple[Any, ...]:
    """Return whether operators are differentiated, and which type autocast has them run in."""
    return (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))


def _tensors_at(slots: Sequence[tuple[dict[str, Any], str]]) -> Iterator[torch.Tensor]:
    return (tensor for holder, name in slots if (tensor := holder[name]) is not None)


def _slots_in(modules: Sequence[nn.Module]) -> list[tuple[dict[str, Any], str]]:
    return [slot for root in modules for module in root.modules() for slot in _slots_of(module)]


def _slots_of(module: nn.Module) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield where a module has its weights and buffers; what the first FSDP gathers are plain attributes."""
    for holder in (module._parameters, module._buffers):  # noqa: SLF001 - public methods return copies
        yield from ((holder, name) for name, tensor in holder.items() if tensor is not None)
    attributes = vars(module)
    for name, value in attributes.items():
        if isinstance(value, torch.Tensor) and value.requires_grad:
            yield attributes, name


def _structure(module: nn.Module) -> Any:
    """Return what a module's code can tell it by, but for its place among others."""
    return tuple(
        (
            type(each),
            tuple((name, it) for name, it in vars(each).items() if isinstance(it, _PLAIN) and name not in _PLACES),
        )
        for each in module.modules()
    )
