"""Loops that only a condition ends, as ``while`` has it; a ``for`` ends with what it runs over."""

from __future__ import annotations

import dis
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType

# Where a jump back leads that ends by itself: to the next of what is run over, and behind what was awaited.
_ENDING = frozenset({"FOR_ITER", "GET_ANEXT", "END_SEND"})
_AWAITING = "JUMP_BACKWARD_NO_INTERRUPT"


@functools.cache
def has_open_loop(code: CodeType) -> bool:
    """Whether code loops for as long as a condition holds; those of functions that it calls are not seen."""
    instructions = list(dis.get_instructions(code))
    operators = {each.offset: each.opname for each in instructions}
    backward = (each for each in instructions if "JUMP_BACKWARD" in each.opname and each.opname != _AWAITING)
    return any(operators[each.argval] not in _ENDING for each in backward)
