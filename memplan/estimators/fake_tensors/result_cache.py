"""Results of operators on fake tensors, made again where an operator meets tensors of the same form again.

Layers, steps and runs repeat themselves, and nothing but the operator, the forms of the tensors that it is given and
its other arguments says which form its results have. Torch remembers results too (``FakeTensorMode.cache``), but what
it does around each call takes many times as long as to make them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch._subclasses.fake_tensor import FakeTensorMode

_PLAIN = frozenset((
    int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
))  # fmt: skip
_OF_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMetadata:
    """What a dense tensor without values is made from; counts in elements.

    Args:
        shape: its sizes.
        stride: its strides.
        dtype: type of its elements.
        device: where it is said to be.
        offset: where it begins in its storage.
        owner: place, among the tensors an operator is given, of the one whose storage it is a view of; None for one
            with a storage of its own.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int = 0
    owner: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Results:
    """What one call returned.

    Args:
        container: list or tuple; None for a lone tensor.
        forms: the form of each tensor among the values; any other value itself: a whole number, or None.
    """

    container: type | None
    forms: tuple[TensorMetadata | int | None, ...]


class ResultCache:
    """What operators of one step returned so far, by what they were given."""

    def __init__(self) -> None:
        self._results: dict[tuple[Any, ...], _Results | None] = {}

    def run(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fakes: FakeTensorMode) -> Any:
        """Return what an operator returns on fake tensors of a mode."""
        given: list[FakeTensor] = []
        may_remember = _follows_forms(operator) and not torch.is_inference_mode_enabled()  # its tensors are marked
        key = _key(operator, args, kwargs, given) if may_remember else None
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
    """Return the form of a dense tensor.

    Args:
        tensor: it; a real one shares its storage with none.
        places: by the identity of storages that it may be a view of, the place of the tensor that owns each.
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
    form: TensorMetadata,
    fakes: FakeTensorMode,
    given: Sequence[torch.Tensor] = (),
    *,
    constant: torch.Tensor | None = None,
) -> FakeTensor:
    """Make a fake tensor of a form.

    Args:
        form: what it is like.
        fakes: the mode it belongs to.
        given: the tensors that the form's owner is one of.
        constant: its value, if torch is to know it.
    """
    with torch._C._DisableTorchDispatch():  # noqa: SLF001 - public under no other name
        if form.owner is None:
            memory = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device="meta")
        else:
            storage = given[form.owner].untyped_storage()
            memory = torch.empty(0, dtype=form.dtype, device="meta")
            memory.set_(storage, form.offset, form.shape, form.stride)
    return FakeTensor(fakes, memory, form.device, constant=constant)


@functools.cache
def _follows_forms(operator: Any) -> bool:
    """Whether an operator writes to nothing, and what it returns depends on no values."""
    return (
        isinstance(operator, OpOverload)
        and operator.namespace == "aten"
        and not operator._schema.is_mutable  # noqa: SLF001 - the only place that says it
        and not any(tag in operator.tags for tag in _OF_VALUES)
    )


def _key(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[FakeTensor]
) -> tuple[Any, ...] | None:
    """Return all that the results depend on, and gather the tensors given; None where that cannot be told."""
    parts: list[Any] = [operator, torch.get_default_dtype(), *kwargs]
    is_told = _describe(args, parts, given) and (not kwargs or _describe(kwargs.values(), parts, given))
    return tuple(parts) if is_told and not _are_constant(given) else None


def _are_constant(given: list[FakeTensor]) -> bool:
    """Whether torch knows the values of all that is given, and computes with them."""
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
    """Whether a tensor is dense and as it lies in memory."""
    return tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg() and not tensor.is_inference()


def _made(results: _Results, given: list[FakeTensor], fakes: FakeTensorMode) -> Any:
    made = [fake_from(form, fakes, given) if isinstance(form, TensorMetadata) else form for form in results.forms]
    return made[0] if results.container is None else results.container(made)


def _results_of(returned: Any, given: list[FakeTensor], fakes: FakeTensorMode) -> _Results | None:
    """Return the forms of what was returned; None where what is made from them would not be the same."""
    container = type(returned) if type(returned) in {list, tuple} else None
    values = [returned] if container is None else returned
    tensors = [value for value in values if value is not None and type(value) is not int]
    identities = frozenset(map(id, given))
    if not tensors or not all(_is_unknown(tensor) and id(tensor) not in identities for tensor in tensors):
        return None
    places = {id(each.untyped_storage()): place for place, each in reversed(tuple(enumerate(given)))}
    forms = tuple(metadata_of(value, places) if isinstance(value, FakeTensor) else value for value in values)
    made = [fake_from(form, fakes, given) for form in forms if isinstance(form, TensorMetadata)]
    if not all(map(_are_alike, made, tensors)) or _sharing(made) != _sharing(tensors):
        return None
    return _Results(container=container, forms=forms)


def _sharing(tensors: list[FakeTensor]) -> int:
    return len({id(tensor.untyped_storage()) for tensor in tensors})


def _is_unknown(value: Any) -> bool:
    """Whether a value is a plain tensor that torch knows no value of."""
    return type(value) is FakeTensor and value.constant is None and _is_plain(value)


def _are_alike(made: FakeTensor, tensor: FakeTensor) -> bool:
    keys = [torch._C._dispatch_key_set(each) for each in (made, tensor)]  # noqa: SLF001 - tells kinds of tensors apart
    return _traits(made) == _traits(tensor) and made.requires_grad == tensor.requires_grad and keys[0] == keys[1]
