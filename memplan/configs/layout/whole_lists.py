"""Lists that a child config writes whole because something in them changes: inheritance replaces lists whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memplan.configs.assignments import Assignment
from memplan.configs.keys import get, outermost_list, with_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeList:
    """A list with its new members, and the assignments that change them."""

    key: str
    value: list[Any] | tuple[Any, ...]
    within: tuple[Assignment, ...] = ()

    def inner_key(self, assignment: Assignment) -> str:
        """Return the key of an assignment from the list on, its index first."""
        return assignment.key.removeprefix(f"{self.key}.")

    @property
    def as_one(self) -> Assignment:
        """The assignment of the whole list, for the reason of the last one within it."""
        return Assignment(key=self.key, value=self.value, reason=self.within[-1].reason)


def with_whole_lists(values: Mapping[str, Any], assignments: Sequence[Assignment]) -> list[Assignment | WholeList]:
    """Gather the assignments to members of one list.

    Args:
        values: what is inherited.
        assignments: what changes.
    """
    found: dict[str, Assignment | WholeList] = {}
    for each in assignments:
        key = outermost_list(values, each.key)
        if key is None:
            found[each.key] = each
            continue
        known = found.get(key)
        whole = known if isinstance(known, WholeList) else WholeList(key=key, value=get(values, key))
        changed = with_value(whole.value, whole.inner_key(each), each.value)
        found[key] = replace(whole, value=changed, within=(*whole.within, each))
    return list(found.values())
