"""How operators of a graph are taken apart where its tensors lie on a card, though it was captured on the CPU.

Some decompositions of PyTorch ask where tensors lie. Of their compiled code the words for the CPU and for a card are
exchanged, so that they take tensors on the CPU for the card's (PyTorch 2.9 to 2.14; a function that a version lacks is
left out). Others that name the CPU make tensors there, and stay as they are.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import _refs as references
from torch._decomp import decompositions, decompositions_for_rng
from torch._inductor import decomposition as inductor_decompositions
from torch._refs import fft
from torch._refs.nn import functional

from memplan.estimators.absent_card.card_answers import always
from memplan.estimators.fake_tensors.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import CodeType, FunctionType

_ASKING: dict[Any, tuple[str, ...]] = {
    inductor_decompositions: ("addmm", "bmm", "grid_sampler_2d", "mm"),
    decompositions: (
        "_addmm_activation",
        "_grid_sampler_2d",
        "_reflection_or_replication_pad",
        "_upsample_get_cubic_coefficients",
        "_upsample_linear",
        "_upsample_nearest",
        "log_sigmoid_forward",
        "native_batch_norm_helper",
    ),
    decompositions_for_rng: ("bernoulli_", "bernoulli_p"),
    references: ("native_group_norm", "native_layer_norm"),
    fft: ("_promote_type_fft",),
    functional: ("channel_shuffle",),
}
_EXCHANGED = {"cpu": "cuda", "cuda": "cpu", "is_cpu": "is_cuda", "is_cuda": "is_cpu"}
_AS_WRITTEN: dict[FunctionType, CodeType] = {
    (function := inspect.unwrap(vars(module)[name])): function.__code__
    for module, names in _ASKING.items()
    for name in names
    if name in vars(module)
}


@contextmanager
def as_on_a_card() -> Iterator[None]:
    """Let decompositions take tensors on the CPU for a card's while the context is open."""
    exchanged = {function: _exchanged(code) for function, code in _AS_WRITTEN.items()}
    with _codes_replaced(exchanged), replaced(inductor_decompositions, "is_gpu", always(True)):
        yield


@contextmanager
def as_written() -> Iterator[None]:
    """Let decompositions find out where tensors lie while the context is open, within the other one."""
    with _codes_replaced(_AS_WRITTEN):
        yield


@contextmanager
def _codes_replaced(codes: Mapping[FunctionType, CodeType]) -> Iterator[None]:
    with ExitStack() as stack:
        for function, code in codes.items():
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = code
        yield


def _exchanged(code: CodeType) -> CodeType:
    constants, names = (tuple(map(_other, each)) for each in (code.co_consts, code.co_names))
    return code.replace(co_consts=constants, co_names=names)


def _other(word: Any) -> Any:
    """Return the word for the other kind of device, also within a collection of words; anything else as it is."""
    if isinstance(word, tuple):
        return tuple(map(_other, word))
    if isinstance(word, frozenset):
        return frozenset(map(_other, word))
    return _EXCHANGED.get(word, word) if isinstance(word, str) else word
