"""A cache of operator results on fake tensors.

Layers, steps and runs repeat operators, whose result metadata depends only on the operator, the metadata of its tensors
and its other arguments. Torch has such a cache (``FakeTensorMode.cache``), but its overhead per call is many times the
cost of making the results.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from memplan.estimators.fake_tensors.dispatcher import depends_on_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch._subclasses.fake_tensor import FakeTensorMode

_PLAIN = frozenset((
    int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMetadata:
    """Metadata of a dense tensor; sizes in elements.

    Args:
        shape: its sizes.
        stride: its strides.
        dtype: type of its elements.
        device: its reported device.
        offset: its offset in the storage.
        owner: index, among the operator's tensor arguments, of the one whose storage it views; None if it has its own.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int
    owner: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Results:
    """The results of one call.

    Args:
        container: list or tuple; None for a single tensor.
        values: the metadata of each tensor; integers and None as they are.
    """

    container: type | None
    values: tuple[TensorMetadata | int | None, ...]


class ResultCache:
    """Results of the operators of one step, by their arguments."""

    def __init__(self) -> None:
        self._results: dict[tuple[Any, ...], _Results | None] = {}

    def run(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fakes: FakeTensorMode) -> Any:
        """Run an operator on fake tensors of a mode, or return its cached results."""
        given: list[FakeTensor] = []
        is_cacheable = _depends_on_metadata(operator) and not torch.is_inference_mode_enabled()
        key = _key(operator, args, kwargs, given) if is_cacheable else None
        if key is None:
            return operator(*args, **kwargs)
        results = self._results.get(key)
        if results is not None:
            return _made(results, given, fakes)
        returned = operator(*args, **kwargs)
        if key not in self._results:
            self._results[key] = _results_of(returned, given, fakes)
        return returned


def metadata_of(tensor: torch.Tensor, places: Mapping[int, int] = MappingProxyType({})) -> TensorMetadata:
    """Return the metadata of a dense tensor.

    Args:
        tensor: the tensor; a real one must own its storage.
        places: index of the owning argument by the ``id`` of each storage that the tensor may view.
    """
    storage = tensor.untyped_storage()
    return TensorMetadata(
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        dtype=tensor.dtype,
        device=tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device,
        offset=int(tensor.storage_offset()),
        owner=places.get(id(storage)),
    )


def fake_from(
    metadata: TensorMetadata,
    fakes: FakeTensorMode,
    given: Sequence[torch.Tensor] = (),
    *,
    constant: torch.Tensor | None = None,
) -> FakeTensor:
    """Return a fake tensor with this metadata.

    Args:
        metadata: of the tensor.
        fakes: its mode.
        given: the arguments that ``metadata.owner`` refers to.
        constant: its value, if torch is to keep it.
    """
    with torch._C._DisableTorchDispatch():  # noqa: SLF001 - public under no other name
        if metadata.owner is None:
            memory = torch.empty_strided(metadata.shape, metadata.stride, dtype=metadata.dtype, device="meta")
        else:
            storage = given[metadata.owner].untyped_storage()
            memory = torch.empty(0, dtype=metadata.dtype, device="meta")
            memory.set_(storage, metadata.offset, metadata.shape, metadata.stride)
    return FakeTensor(fakes, memory, metadata.device, constant=constant)


@functools.cache
def _depends_on_metadata(operator: Any) -> bool:
    """Whether an operator writes to no argument and its results depend on no values."""
    return (
        isinstance(operator, OpOverload)
        and operator.namespace == "aten"
        and not operator._schema.is_mutable  # noqa: SLF001 - in no public attribute
        and not depends_on_values(operator)
    )


def _key(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[FakeTensor]
) -> tuple[Any, ...] | None:
    """Return all that the results depend on, and collect the tensor arguments; None if the call cannot be cached."""
    parts: list[Any] = [operator, torch.get_default_dtype(), *kwargs]
    is_described = _describe(args, parts, given) and (not kwargs or _describe(kwargs.values(), parts, given))
    return tuple(parts) if is_described and not _are_constant(given) else None


def _are_constant(given: list[FakeTensor]) -> bool:
    """Whether torch keeps the values of all arguments, and computes with them."""
    return bool(given) and all(tensor.constant is not None for tensor in given)


def _describe(values: Iterable[Any], parts: list[Any], given: list[FakeTensor]) -> bool:
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            if not _is_plain(value):
                return False
            given.append(value)
            parts += _traits(value)
        elif kind in _PLAIN:
            parts += (kind, value)  # 1, 1.0 and True are equal
        elif kind is list or kind is tuple:
            parts += (kind, len(value))
            if not _describe(value, parts, given):
                return False
        else:
            return False
    return True


def _traits(tensor: FakeTensor) -> tuple[Any, ...]:
    storage_bytes = tensor.untyped_storage().nbytes()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.fake_device, tensor.storage_offset(), storage_bytes


def _is_plain(tensor: FakeTensor) -> bool:
    """Whether a tensor is dense, and neither lazily conjugated nor negated."""
    return tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg() and not tensor.is_inference()


def _made(results: _Results, given: list[FakeTensor], fakes: FakeTensorMode) -> Any:
    made = [fake_from(each, fakes, given) if isinstance(each, TensorMetadata) else each for each in results.values]
    return made[0] if results.container is None else results.container(made)


def _results_of(returned: Any, given: list[FakeTensor], fakes: FakeTensorMode) -> _Results | None:
    """Return the metadata of the results; None if tensors made from it would differ."""
    container = type(returned) if type(returned) in {list, tuple} else None
    values = [returned] if container is None else returned
    tensors = [value for value in values if value is not None and type(value) is not int]
    identities = frozenset(map(id, given))
    if not tensors or not all(_is_unknown(tensor) and id(tensor) not in identities for tensor in tensors):
        return None
    places = {id(each.untyped_storage()): place for place, each in reversed(tuple(enumerate(given)))}
    metadata = tuple(metadata_of(value, places) if isinstance(value, FakeTensor) else value for value in values)
    made = [fake_from(each, fakes, given) for each in metadata if isinstance(each, TensorMetadata)]
    if not all(map(_are_alike, made, tensors)) or _sharing(made) != _sharing(tensors):
        return None
    return _Results(container=container, values=metadata)


def _sharing(tensors: list[FakeTensor]) -> int:
    return len({id(tensor.untyped_storage()) for tensor in tensors})


def _is_unknown(value: Any) -> bool:
    """Whether a value is a plain fake tensor without a constant value."""
    return type(value) is FakeTensor and value.constant is None and _is_plain(value)


def _are_alike(made: FakeTensor, tensor: FakeTensor) -> bool:
    keys = [torch._C._dispatch_key_set(each) for each in (made, tensor)]  # noqa: SLF001 - distinguishes kinds of tensors
    return _traits(made) == _traits(tensor) and made.requires_grad == tensor.requires_grad and keys[0] == keys[1]
