"""Values that are known although tensors are fake: masks, lengths and indices of the batch, and what follows from them.

Models read them: whether a mask hides anything, how long the longest sample is, which layer is dropped. The values of
small tensors are computed beside the fake ones, as long as all that they are made of is known.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from memplan.estimators.fake_tensors.presumed_values import presumed_truth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch._ops import OpOverload

    from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
    from memplan.estimators.fake_tensors.random_draws import RandomDraws

LARGEST_ELEMENTS = 1 << 20  # 8 MiB of whole numbers
LARGEST_GIVEN_ELEMENTS = 1 << 25  # 128 MiB of pixels, among which models look for empty images
_VALUE = "memplan_known_value"
_DRAWN = "memplan_drawn"  # of a value that follows from a random number
_ANSWERS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_LIFT = torch.ops.aten.lift_fresh.default
_NEARLY_HIGHEST = 0.999
_WRITTEN_DOWN = (
    torch.ops.aten.arange,
    torch.ops.aten.linspace,
    torch.ops.aten.zeros,
    torch.ops.aten.ones,
    torch.ops.aten.full,
)
_INDEXED = (torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor)  # noqa: SLF001 - an operator


def remember_values(
    fakes: Iterable[torch.Tensor], reals: Iterable[torch.Tensor], *, largest_elements: int = LARGEST_ELEMENTS
) -> None:
    """Remember the values of those tensors that are not larger."""
    for fake, real in zip(fakes, reals, strict=True):
        if real.numel() <= largest_elements:
            setattr(fake, _VALUE, real.detach().clone())


def remember_value(fake: torch.Tensor, real: torch.Tensor) -> bool:
    """Remember the value of a fake tensor; return whether it is small enough."""
    is_small = real.numel() <= LARGEST_ELEMENTS
    if is_small:
        setattr(fake, _VALUE, real)
    return is_small


def run_with_known_values(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], *, fakes: TraceFakeMode
) -> Any:
    """Run an operator on fake tensors; where its result depends on values that are known, answer from them.

    Args:
        operator: what to run.
        args: its arguments.
        kwargs: its keyword arguments.
        fakes: the mode that the tensors belong to.
    """
    if operator is _LIFT and type(args[0]) is torch.Tensor and args[0].numel() <= 1:
        return _faked(args[0], fakes.from_number)
    if operator is torch.ops.aten.uniform_.default and args[0].numel() == 1:
        return _drawn(*args, **kwargs)
    if _depends_on_values(operator):
        if operator in _INDEXED:
            args = (args[0], _without_masks(args[1], fakes.from_tensor))
        elif _all_known(args, kwargs):
            if any(map(_is_drawn, args)):
                fakes.draws.read()
            real = _run_for_real(operator, args, kwargs)
            return tree_map_only(torch.Tensor, lambda value: _faked(value, fakes.from_tensor), real)
    result = fakes.run(operator, args, kwargs)
    _follow_all(operator, args, kwargs, result, fakes.draws)
    return result


def _follow_all(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, draws: RandomDraws
) -> None:
    """Keep what is known of values up with what an operator did."""
    if isinstance(result, FakeTensor):
        truth = presumed_truth(operator, args) if result.dtype is torch.bool else None
        if truth is not None:
            with unset_fake_temporarily():
                setattr(result, _VALUE, torch.full((), truth).expand(result.shape))
        elif _is_small(result, args) and _may_be_known(args, result):
            _follow(operator, args, kwargs, result, draws)
    elif isinstance(result, list | tuple) and args and is_known(args[0]):
        _follow_parts(operator, args, kwargs, result)
    elif operator._schema.is_mutable:  # noqa: SLF001 - the only place that says it
        _follow_writes(operator, args, kwargs)


@functools.cache
def _depends_on_values(operator: OpOverload) -> bool:
    return any(tag in operator.tags for tag in _ANSWERS)


def _is_small(result: FakeTensor, args: tuple[Any, ...]) -> bool:
    elements = result.numel()
    return elements <= LARGEST_ELEMENTS or any(is_known(each) and elements <= each.numel() for each in args)


def _may_be_known(args: tuple[Any, ...], result: FakeTensor) -> bool:
    return _is_whole(result) or result.numel() == 1 or any(map(_holds_known, args)) or not _tensors(args, {})


def _holds_known(argument: Any) -> bool:
    return any(map(is_known, argument)) if isinstance(argument, list | tuple) else is_known(argument)


def _follow(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: FakeTensor, draws: RandomDraws
) -> None:
    tensors = _tensors(args, kwargs)
    if torch.Tag.nondeterministic_seeded in operator.tags:
        value = None if tensors or result.numel() != 1 else draws.drawn(operator, args, result)
        if value is not None:
            setattr(result, _VALUE, value)
            setattr(result, _DRAWN, True)
    elif all(_known(each) is not None for each in tensors) if tensors else _is_written_down(operator, result):
        setattr(result, _VALUE, _run_for_real(operator, args, kwargs))
        if any(map(_is_drawn, tensors)):
            setattr(result, _DRAWN, True)
    elif is_known(result):  # written to with what is not known
        delattr(result, _VALUE)


def _is_written_down(operator: OpOverload, result: torch.Tensor) -> bool:
    return _is_whole(result) or operator.overloadpacket in _WRITTEN_DOWN


def _follow_parts(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], parts: Sequence[Any]) -> None:
    """Give the parts that a known tensor is taken into, or the results found in it, their values."""
    if _all_known(args, kwargs) and torch.Tag.nondeterministic_seeded not in operator.tags:
        for part, real in zip(parts, _run_for_real(operator, args, kwargs), strict=True):
            if isinstance(part, FakeTensor):
                setattr(part, _VALUE, real)


def _follow_writes(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Write to the known values among several targets what an operator writes, or forget them."""
    known = [each for each in _tensors(args[:1], {}) if is_known(each)]
    if known and _all_known(args, kwargs):
        _run_for_real(operator, args, kwargs)
    elif known:
        for target in known:
            delattr(target, _VALUE)
            target.constant = None  # type: ignore[attr-defined]  # FakeTensor's own memory, which it leaves as it was


def is_known(value: Any) -> bool:
    """Whether the value of a fake tensor is known."""
    return hasattr(value, _VALUE)


def _is_drawn(value: Any) -> bool:
    return hasattr(value, _DRAWN)


def known_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the value of a tensor, fake or not; None where it is not known."""
    with _disable_current_modes():
        return _known(tensor)


def value_read(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the value of a tensor, fake or not, that Python reads; None where it is not known."""
    if isinstance(tensor, FakeTensor) and _is_drawn(tensor):
        cast("TraceFakeMode", tensor.fake_mode).draws.read()
    return known_value(tensor)


def known_true_count(mask: torch.Tensor) -> int | None:
    """Return how many elements of a mask, fake or not, are true; None where they are not known."""
    value = known_value(mask)
    with _disable_current_modes():
        return None if value is None else int(value.count_nonzero())


def known_integers(tensor: torch.Tensor) -> list[int] | None:
    """Return the elements of a vector of whole numbers, fake or not; None where they are not known."""
    value = known_value(tensor)
    with _disable_current_modes():
        return None if value is None else [int(each) for each in value.tolist()]


def known_vector(numbers: list[int], *, like: torch.Tensor) -> torch.Tensor:
    """Return a vector of whole numbers, which is fake but known where another tensor is fake."""
    with _disable_current_modes():
        real = torch.tensor(numbers)
        fake: torch.Tensor = _faked(real, like.fake_mode.from_tensor) if isinstance(like, FakeTensor) else real
    return fake


def _run_for_real(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def real(value: Any) -> Any:
        return _known(value) if isinstance(value, torch.Tensor) else value

    with unset_fake_temporarily(), torch.no_grad():
        args, kwargs = tree_map(real, (args, kwargs))
        return operator(*args, **kwargs)


def _drawn(scalar: torch.Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> torch.Tensor:
    """Let a number drawn to choose among sizes, such as those of images, be nearly the highest: the last is largest."""
    with unset_fake_temporarily():
        remember_value(scalar, torch.full(scalar.shape, low + _NEARLY_HIGHEST * (high - low), dtype=scalar.dtype))
    return scalar


def _without_masks(indices: list[Any], make_fake: Callable[[torch.Tensor], Any]) -> list[Any]:
    plain: list[Any] = []
    for each in indices:
        mask = _known(each) if isinstance(each, torch.Tensor) and each.dtype is torch.bool else None
        if mask is None:
            plain.append(each)
            continue
        with unset_fake_temporarily():
            positions = mask.nonzero(as_tuple=True)
        plain += [_faked(position, make_fake) for position in positions]
    return plain


def _faked(real: torch.Tensor, make_fake: Callable[[torch.Tensor], Any]) -> Any:
    fake = make_fake(real)
    setattr(fake, _VALUE, real)
    return fake


def _known(tensor: torch.Tensor) -> torch.Tensor | None:
    value: torch.Tensor | None = getattr(tensor, _VALUE, None)
    if value is not None:
        return value
    if isinstance(tensor, FakeTensor):
        return tensor.constant
    return tensor.clone() if tensor.numel() <= LARGEST_ELEMENTS else None  # the user's own, never to be written to


def _all_known(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return all(_known(each) is not None for each in _tensors(args, kwargs))


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    return [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]


def _is_whole(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()
