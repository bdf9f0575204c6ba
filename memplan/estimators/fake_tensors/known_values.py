"""Known values of fake tensors: masks, lengths, indices and boxes of the batch, and what is computed from them.

Models read such values: whether a mask hides anything, how long the longest sample is, which layer is dropped, which
anchors a box overlaps. Values of small tensors are computed beside the fake ones, as long as all operands are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from memplan.estimators.fake_tensors.dispatcher import depends_on_values
from memplan.estimators.fake_tensors.filled_values import filled_value
from memplan.estimators.fake_tensors.presumed_values import presumed_truth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch._ops import OpOverload

    from memplan.estimators.fake_tensors.fake_mode import TraceFakeMode
    from memplan.estimators.fake_tensors.random_draws import RandomDraws

LARGEST_ELEMENTS = 1 << 20  # 8 MiB of int64
_LARGEST_FLOAT_ELEMENTS = 1 << 26  # 256 MiB of fp32: overlaps of a hundred boxes with 200,000 anchors, two numbers each
_LARGEST_VIEWED_ELEMENTS = 1 << 23  # of views, which take nothing themselves; 64 MiB of int64 for what is made of them
LARGEST_GIVEN_ELEMENTS = 1 << 25  # 128 MiB of fp32 pixels, in which models look for empty images
_VALUE = "memplan_known_value"
_DRAWN = "memplan_drawn"  # marks values that depend on a random number
_LIFT = torch.ops.aten.lift_fresh.default
_NEARLY_HIGHEST = 0.999
_LITERAL_FACTORIES = (
    torch.ops.aten.arange,
    torch.ops.aten.linspace,
    torch.ops.aten.zeros,
    torch.ops.aten.ones,
    torch.ops.aten.full,
    torch.ops.aten.scalar_tensor,
)
_INDEXED = (torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor)  # noqa: SLF001 - an operator


def remember_values(
    fake_tensors: Iterable[torch.Tensor], reals: Iterable[torch.Tensor], *, largest_elements: int = LARGEST_ELEMENTS
) -> None:
    """Make the values of real tensors of at most so many elements known for their fake copies."""
    for fake, real in zip(fake_tensors, reals, strict=True):
        if real.numel() <= largest_elements:
            setattr(fake, _VALUE, real.detach().clone())


def remember_value(fake: torch.Tensor, real: torch.Tensor) -> bool:
    """Make a value known for a fake tensor, if it is small; return whether it is."""
    is_small = real.numel() <= LARGEST_ELEMENTS
    if is_small:
        setattr(fake, _VALUE, real)
    return is_small


def run_with_known_values(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], *, fakes: TraceFakeMode
) -> Any:
    """Run an operator on fake tensors; if its result depends on values, compute it from known ones.

    Args:
        operator: the operator.
        args: its positional arguments.
        kwargs: its keyword arguments.
        fakes: the mode of the tensors.
    """
    if operator is _LIFT and type(args[0]) is torch.Tensor and args[0].numel() <= 1:
        return _faked(args[0], fakes.from_number)
    if operator is torch.ops.aten.uniform_.default and args[0].numel() == 1:
        return _drawn_near_upper_bound(*args, **kwargs)
    if depends_on_values(operator):
        if operator in _INDEXED:
            args = (args[0], _without_masks(args[1], fakes.from_tensor))
        elif _all_known(args, kwargs):
            if any(map(_is_drawn, args)):
                fakes.draws.record_read()
            real = _run_for_real(operator, args, kwargs)
            return tree_map_only(torch.Tensor, lambda value: _faked(value, fakes.from_tensor), real)
    result = fakes.run(operator, args, kwargs)
    try:
        _update_values(operator, args, kwargs, result, fakes.draws)
    except RuntimeError:  # the CPU lacks a kernel for this type, or one element stands for all, which cannot be written
        forget_values((result, args[:1] if operator._schema.is_mutable else ()))  # noqa: SLF001 - in no public attribute
    return result


def _update_values(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, draws: RandomDraws
) -> None:
    """Update the known values after an operator."""
    if isinstance(result, FakeTensor):
        filled = _presumed_everywhere(operator, args, result)
        if filled is None:
            filled = filled_value(operator, args, result)
        if filled is not None:
            setattr(result, _VALUE, filled)
        elif _is_small(operator, result, args) and (operator is _LIFT or _may_be_known(args, result)):
            _update_result(operator, args, kwargs, result, draws)
    elif isinstance(result, list | tuple) and args and is_known(args[0]):
        _update_parts(operator, args, kwargs, result)
    elif operator._schema.is_mutable:  # noqa: SLF001 - in no public attribute
        _update_written(operator, args, kwargs)


def _presumed_everywhere(operator: OpOverload, args: tuple[Any, ...], result: FakeTensor) -> torch.Tensor | None:
    truth = presumed_truth(operator, args) if result.dtype is torch.bool else None
    if truth is None:
        return None
    with unset_fake_temporarily():
        return torch.full((), truth).expand(result.shape)


def _is_small(operator: OpOverload, result: FakeTensor, args: tuple[Any, ...]) -> bool:
    elements = result.numel()
    largest = _LARGEST_VIEWED_ELEMENTS if operator.is_view else LARGEST_ELEMENTS
    if elements <= largest or any(is_known(each) and elements <= each.numel() for each in args):
        return True
    is_small_real = elements <= _LARGEST_FLOAT_ELEMENTS and result.is_floating_point()
    return is_small_real and any(each.is_floating_point() for each in _known_among(args))


def _may_be_known(args: tuple[Any, ...], result: FakeTensor) -> bool:
    is_plain = _is_integral(result) or result.numel() == 1
    return is_plain or next(_known_among(args), None) is not None or not _tensors(args)


def _known_among(args: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    for argument in args:
        yield from filter(is_known, argument if isinstance(argument, list | tuple) else (argument,))


def _update_result(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: FakeTensor, draws: RandomDraws
) -> None:
    tensors = _tensors(args, kwargs)
    if torch.Tag.nondeterministic_seeded in operator.tags:
        value = None if tensors or result.numel() != 1 else draws.drawn(operator, args, result)
        if value is not None:
            setattr(result, _VALUE, value)
            setattr(result, _DRAWN, True)
    elif all(_known(each) is not None for each in tensors) if tensors else _is_literal(operator, result):
        setattr(result, _VALUE, _run_for_real(operator, args, kwargs))
        if any(map(_is_drawn, tensors)):
            setattr(result, _DRAWN, True)
    elif is_known(result):  # overwritten with unknown values
        delattr(result, _VALUE)


def _is_literal(operator: OpOverload, result: torch.Tensor) -> bool:
    return _is_integral(result) or operator.overloadpacket in _LITERAL_FACTORIES


def _update_parts(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], parts: Sequence[Any]) -> None:
    """Compute the values of several results of a known tensor, such as its parts."""
    if _all_known(args, kwargs) and torch.Tag.nondeterministic_seeded not in operator.tags:
        is_drawn = any(map(_is_drawn, _tensors(args, kwargs)))
        for part, real in zip(parts, _run_for_real(operator, args, kwargs), strict=True):
            if isinstance(part, FakeTensor):
                setattr(part, _VALUE, real)
                if is_drawn:
                    setattr(part, _DRAWN, True)


def _update_written(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Apply an in-place operator to the known values of its targets, or discard these."""
    known = [each for each in _tensors(args[:1]) if is_known(each)]
    if known and _all_known(args, kwargs):
        _run_for_real(operator, args, kwargs)
    elif known:
        forget_values(known)


def forget_values(written: Any) -> None:
    """Discard the known values of fake tensors that are written to, within lists and tuples as well."""
    for each in _tensors(written):
        if is_known(each):
            delattr(each, _VALUE)
            each.constant = None  # type: ignore[attr-defined]  # FakeTensor's own copy, which it does not update


def is_known(value: Any) -> bool:
    """Whether the value of a fake tensor is known."""
    return hasattr(value, _VALUE)


def _is_drawn(value: Any) -> bool:
    return hasattr(value, _DRAWN)


def known_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the value of a tensor, fake or real; None if unknown."""
    with _disable_current_modes():
        return _known(tensor)


def value_read(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the value of a tensor that Python code reads; None if unknown."""
    if isinstance(tensor, FakeTensor) and _is_drawn(tensor):
        cast("TraceFakeMode", tensor.fake_mode).draws.record_read()
    return known_value(tensor)


def known_true_count(mask: torch.Tensor) -> int | None:
    """Return the number of true elements of a mask, or of others than 0; None if unknown."""
    value = known_value(mask)
    with _disable_current_modes():
        return None if value is None else int(value.count_nonzero())


def known_lengths(mask: torch.Tensor) -> list[int] | None:
    """Return how many elements of each row of a mask are true; None if unknown, or if others stand before them."""
    value = known_value(mask)
    with _disable_current_modes():
        if value is None or not value.equal(value.sort(dim=1, descending=True).values):
            return None
        return [int(each) for each in value.sum(1)]


def known_integers(tensor: torch.Tensor) -> list[int] | None:
    """Return the elements of an integer vector; None if unknown."""
    value = known_value(tensor)
    with _disable_current_modes():
        return None if value is None else [int(each) for each in value.tolist()]


def known_vector(numbers: list[int], *, like: torch.Tensor) -> torch.Tensor:
    """Return an integer vector; if ``like`` is fake, a fake one with a known value."""
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


def _drawn_near_upper_bound(scalar: torch.Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> torch.Tensor:
    """Set a scalar drawn by ``uniform_`` near its upper bound, which picks the last and largest of several sizes."""
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
    return tensor.clone() if tensor.numel() <= LARGEST_ELEMENTS else None  # a copy, because the tensor is the user's


def _all_known(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return all(_known(each) is not None for each in _tensors(args, kwargs))


def _tensors(*values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def _is_integral(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()
