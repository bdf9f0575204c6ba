"""The common style of memplan's tables in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions

GOOD, BAD, QUIET = "green", "red", "dim"


def plain_table(title: str, *columns: str) -> Table:
    """Make a table whose first column is text and whose others are figures; where it is too wide, cells are broken."""
    table = _PlainTable(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style=QUIET,
        min_width=len(title),
    )  # fmt: skip
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    return table


class _PlainTable(Table):
    """A table whose lines end where their text does."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield the lines of the table, with no blanks at their ends."""
        rendered = super().__rich_console__(console, options)
        for line in Segment.split_lines(each for each in rendered if isinstance(each, Segment)):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                line[-1] = line[-1]._replace(text=line[-1].text.rstrip())
            yield from (*line, Segment.line())
