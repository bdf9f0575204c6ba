"""Modules that ``torch.nn.Module.compile`` has compiled, which they are no longer once they were pickled.

Imports no torch: what is asked here holds for the private attributes of versions 2.9 to 2.15.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

_COMPILED_CALL = "_compiled_call_impl"
INDUCTOR = "inductor"  # as ``torch.compile`` calls the compiler that it takes if it is not told


def reduced_compiled_module(value: Any) -> tuple[Any, ...] | None:
    """Return how to rebuild a compiled module, as ``__reduce_ex__`` does it; None for anything else."""
    if not hasattr(type(value), _COMPILED_CALL):
        return None
    settings = _settings_of(getattr(value, _COMPILED_CALL))
    if settings is None:
        return None
    make, arguments, state, *_ = value.__reduce_ex__(2)
    return make, arguments, (state, settings), None, None, _restore


def compile_as(module: Any, source: Any) -> None:
    """Compile a module in the way that another is, if that is."""
    settings = _settings_of(getattr(source, _COMPILED_CALL))
    if settings is not None:
        module.compile(**settings)


def unwrapped_backend(callback: Any) -> Any:
    """Return the backend, as ``torch.compile`` made or was given it, in what TorchDynamo calls with a graph."""
    while hasattr(callback, "_torchdynamo_orig_backend"):
        callback = callback._torchdynamo_orig_backend  # noqa: SLF001 - how wrappers of backends hold what they wrap
    return callback


def _restore(module: Any, state_and_settings: tuple[Any, dict[str, Any]]) -> None:
    state, settings = state_and_settings
    module.__setstate__(state)
    module.compile(**settings)


def _settings_of(compiled: Any) -> dict[str, Any] | None:
    """Return the arguments that a module was compiled with, but for ``fullgraph``; None if it is not."""
    while "callback" not in _names_in_closure(compiled):
        if not hasattr(compiled, "__wrapped__"):
            return None
        compiled = compiled.__wrapped__
    callback = compiled.__closure__[_names_in_closure(compiled).index("callback")].cell_contents
    backend = unwrapped_backend(callback)
    name, dynamic = getattr(backend, "compiler_name", None), getattr(backend, "dynamic", None)
    if name == INDUCTOR:
        return {"options": dict(backend.config) or None, "dynamic": dynamic}  # a mode is a set of options
    function = getattr(backend, "compiler_fn", backend)
    is_users = isinstance(function, FunctionType) and not function.__module__.startswith("torch.")
    return {"backend": function if is_users or name is None else name, "dynamic": dynamic}


def _names_in_closure(function: Any) -> tuple[str, ...]:
    code = getattr(function, "__code__", None)
    return () if code is None else code.co_freevars
