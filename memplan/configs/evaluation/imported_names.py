"""Stand-ins for what a config imports from other packages, so that reading it imports none of them."""

from __future__ import annotations

import functools
import types
from typing import Any


class ImportedName:
    """A module, or something in one, known by its dotted name only."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name in ("__name__", "__qualname__"):
            return self._name.rpartition(".")[2]
        if name.startswith("__"):
            raise AttributeError(name)
        return type(self)(f"{self._name}.{name}")

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        """Refuse: nothing was imported that could be called."""
        raise RuntimeError(f"{self._name} is called, which configs of this style must not do while they load")

    def __deepcopy__(self, _memo: dict[int, Any]) -> ImportedName:
        return self

    def __repr__(self) -> str:
        return self._name


class InertName(ImportedName):
    """An imported name that may be called or inherited from; the result is its spelling."""

    def __call__(self, *args: Any, **kwargs: Any) -> InertName:
        """Return the spelling of the call."""
        spelled = [repr(each) for each in args] + [f"{name}={each!r}" for name, each in kwargs.items()]
        return InertName(f"{self._name}({', '.join(spelled)})")

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()


def as_text(value: Any) -> Any:
    """Return nested values with imported names, functions and classes as text that is the same on every reading."""
    if isinstance(value, dict):
        return {name: as_text(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(as_text(each) for each in value)
    if isinstance(value, ImportedName):
        return repr(value)
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        return value.__qualname__
    if isinstance(value, functools.partial):
        inner = [repr(as_text(each)) for each in value.args]
        inner += [f"{name}={as_text(each)!r}" for name, each in value.keywords.items()]
        return f"functools.partial({', '.join([str(as_text(value.func)), *inner])})"
    return value
