"""The common style of what memplan shows in the terminal: tables, hanging indents, and blank lines between parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console, ConsoleOptions, RenderableType

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


def hanging(lines: Iterable[Text], *, indent: int) -> Group:
    """Put lines below one another; a line too long for the terminal continues indented."""
    return Group(*(_HangingLine(text=line, indent=indent) for line in lines))


def spaced(part: RenderableType) -> Group:
    """Put a part below an empty line."""
    return Group(Text(), part)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HangingLine:
    text: Text
    indent: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines of the terminal, with no blanks at their ends."""
        lead, rest = self.text.divide([self.indent])
        for line in rest.wrap(console, max(options.max_width - self.indent, 1)):
            line.rstrip()
            yield Text.assemble(lead, line)
            lead = Text(" " * self.indent)
