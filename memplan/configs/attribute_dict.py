"""Dicts with attribute access to their keys, as the code of configs and workloads expects."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Self

DELETE_KEY = "_delete_"
_ABSENT = object()


class AttributeDict(dict[str, Any]):
    """A dict with attribute access, for subclasses that convert what is set; copies are of the same class."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = ", ".join(map(str, self)) or "nothing"
            raise AttributeError(f"the config sets no {name!r} here; it sets {known}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set keys one by one."""
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def copy(self) -> Self:
        """Return a shallow copy with attribute access."""
        return type(self)(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)({name: deepcopy(value, memo) for name, value in self.items()})


class NestedValues(AttributeDict):
    """A dict with attribute access whose nested dicts are such dicts too, like mmengine's ``ConfigDict``.

    ``update`` merges nested dicts, ``merge`` obeys ``_delete_``, and ``pop`` of an absent key gives None.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__({name: nested(value) for name, value in dict(*args, **kwargs).items()})

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, nested(value))

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set keys; a dict is merged into the dict that is there."""
        for name, value in dict(*args, **kwargs).items():
            present = self.get(name)
            if isinstance(present, dict) and isinstance(value, dict):
                present.update(value)
            else:
                self[name] = value

    def pop(self, name: str, default: Any = None) -> Any:
        """Take a key out and return its value; ``default`` where there is no such key."""
        return super().pop(name, default)

    def merge(self, other: dict[str, Any]) -> None:
        """Merge another dict over this one; a dict in it with ``_delete_=True`` replaces the one here."""
        laid = _laid_over(deepcopy(other), deepcopy(dict(self)))
        self.clear()
        for name, value in laid.items():
            self[name] = value


def nested(value: Any) -> Any:
    """Return a value with its dicts, also those in lists and tuples, as :class:`NestedValues`."""
    if type(value) is dict:
        return NestedValues(value)
    if type(value) in (list, tuple):
        return type(value)(nested(each) for each in value)
    return value


def _laid_over(over: Any, base: Any) -> Any:
    if not isinstance(over, dict):
        return base if over is _ABSENT else over
    delete = over.pop(DELETE_KEY, False)
    if not isinstance(base, dict):
        return over
    kept: dict[str, Any] = {} if delete else base
    names = dict.fromkeys([*kept, *over])
    return {name: _laid_over(over.get(name, _ABSENT), kept.get(name, _ABSENT)) for name in names}
