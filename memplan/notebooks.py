"""How values show themselves in a notebook."""

from __future__ import annotations

from typing import Any


class ShownAsPrinted:
    """A value that a notebook shows as ``print`` does, where it is the last of a cell."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """Write the value for IPython, which looks for this method."""
        printer.text(str(self))
