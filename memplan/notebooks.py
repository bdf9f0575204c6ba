"""How values show themselves in a notebook."""

from __future__ import annotations

from typing import Any


class ShownAsPrinted:
    """A value that a notebook shows as ``print`` does, where it is the last of a cell."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Give a class IPython's method itself, which is not looked for behind a ``__repr__``, as data classes have."""
        super().__init_subclass__(**options)
        cls._repr_pretty_ = _write_as_printed  # type: ignore[attr-defined]  # for IPython alone


def _write_as_printed(value: object, printer: Any, _cycle: bool) -> None:
    printer.text(str(value))
