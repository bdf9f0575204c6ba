"""Paragraphs for the terminal with hanging indents, and blank lines between parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console, ConsoleOptions, RenderableType


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
        first, rest = self.text.divide([self.indent])
        lead = first
        for line in rest.wrap(console, max(options.max_width - self.indent, 1)):
            line.rstrip()
            yield Text.assemble(lead, line)
            lead = Text(" " * self.indent)
