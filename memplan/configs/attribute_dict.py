"""A dict with attribute access to its keys, as the code of configs and workloads expects."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Self


class AttributeDict(dict[str, Any]):
    """A dict with attribute access; copies are of the same class."""

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

    def copy(self) -> Self:
        """Return a shallow copy with attribute access."""
        return type(self)(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)({name: deepcopy(value, memo) for name, value in self.items()})
