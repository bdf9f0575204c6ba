"""Kernels that user code writes in Triton, on a card that is not there.

A launch writes to tensors that it is given, and allocates nothing (``JITFunction.run`` in ``triton/runtime/jit.py``,
versions 3.0 to 3.9). Where a kernel has several configurations, they are timed first, once for each key of arguments
(``Autotuner.run`` in ``autotuner.py``): a buffer overwrites the card's cache in between
(``CudaDriver.get_empty_cache_for_benchmark``), beside copies of what the kernel must not change twice.

Not counted: scratch memory that kernels ask of the allocator given to ``triton.set_allocator``.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memplan.estimators.fake_tensors.replaced import replaced
from memplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OVERWRITING_BYTES = 256 * MIB


@contextmanager
def absent_triton_launches() -> Iterator[None]:
    """Launch nothing where kernels are given fake tensors, and tune as in a new process, while the context is open."""
    jit, autotuner = (sys.modules.get(f"triton.runtime.{name}") for name in ("jit", "autotuner"))
    with ExitStack() as stack:
        if jit is not None and autotuner is not None:
            stack.enter_context(replaced(jit.JITFunction, "run", _leaving_out_fakes(jit.JITFunction.run)))
            stack.enter_context(replaced(autotuner.Autotuner, "run", _tuning_anew()))
        yield


def _leaving_out_fakes(launch: Callable[..., Any]) -> Callable[..., Any]:
    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            raise RuntimeError("what a Triton kernel writes is not seen where code is captured as a graph")
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        is_real = not all(isinstance(each, FakeTensor) for each in tensors)
        return launch(kernel, *args, **kwargs) if is_real else None

    return run


def _tuning_anew() -> Callable[..., Any]:
    tuned: set[Any] = set()

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        named = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
        key = (
            tuner,
            *(named[name] for name in tuner.keys if name in named),
            *(str(each.dtype) for each in named.values() if isinstance(each, torch.Tensor)),
        )
        if len(tuner.configs) > 1 and key not in tuned:
            tuned.add(key)
            _time(named, tuner.restore_value)
        config = tuner.configs[0]
        if config.pre_hook is not None:
            config.pre_hook({**named, **config.all_kwargs()})
        return tuner.fn.run(*args, **kwargs, **config.all_kwargs())

    return run


def _time(named: dict[str, Any], restored: Any) -> None:
    """Allocate what is there while a kernel's configurations are timed."""
    tensor = next((each for each in named.values() if isinstance(each, torch.Tensor)), None)
    if tensor is not None:
        overwriting = tensor.new_empty(_OVERWRITING_BYTES, dtype=torch.uint8)
        copies = [named[name].clone() for name in restored or ()]
        del overwriting, copies
