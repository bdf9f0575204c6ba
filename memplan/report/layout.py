"""The common style of what memplan shows in the terminal: tables, hanging indents, and blank lines between parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from memplan.report.wording import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console, ConsoleOptions, RenderableType

GOOD, BAD, QUIET = "green", "red", "dim"
_GAP = 2  # between columns
_LONGEST_WHOLE_WORD = 16  # longer ones, such as keys of configs, may be broken


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
    """A table whose lines end where their text does.

    Where not even the words of a line fit beside one another, each row is a block of lines instead.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        """Yield the lines of the table, with no blanks at their ends."""
        cells = [[_as_text(each) for each in (column.header, *column.cells)] for column in self.columns]
        widths = _widths(cells, options.max_width)
        if widths is None:
            yield from self._blocks(cells)
            return
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        rendered = super().__rich_console__(console, options)
        for line in Segment.split_lines(each for each in rendered if isinstance(each, Segment)):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                line[-1] = line[-1]._replace(text=line[-1].text.rstrip())
            yield from (*line, Segment.line())

    def _blocks(self, cells: list[list[Text]]) -> Iterator[RenderableType]:
        yield Text(str(self.title), style="bold")
        names, *rows = zip(*cells, strict=True)
        longest = max(each.cell_len for each in names[1:])
        for first, *rest in rows:
            yield first
            lines = [
                Text.assemble("  ", (f"{name.plain:<{longest}}", QUIET), "  ", cell)
                for name, cell in zip(names[1:], rest, strict=True)
                if cell.plain != NOTHING
            ]
            yield hanging(lines, indent=longest + 4)


def _as_text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


def _widths(cells: list[list[Text]], most: int) -> list[int | None] | None:
    """Return the widths of columns: none of their own where all fit, else what keeps words whole; None if nothing does.

    What is left beyond the longest word of each column goes to the first ones.
    """
    wanted = [max(each.cell_len for each in column) for column in cells]
    left = most - _GAP * (len(cells) - 1)
    if sum(wanted) <= left:
        return [None] * len(cells)
    words = [max(len(word) for each in column for word in each.plain.split() or [""]) for column in cells]
    widths = [min(each, _LONGEST_WHOLE_WORD) for each in words]
    left -= sum(widths)
    if left < 0:
        return None
    for index, width in enumerate(widths):
        widths[index] = min(wanted[index], width + left)
        left -= widths[index] - width
    return list(widths)


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
