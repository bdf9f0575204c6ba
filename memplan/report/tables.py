"""The one look of memplan's tables in the terminal."""

from __future__ import annotations

from rich.table import Table

GOOD, BAD, QUIET = "green", "red", "dim"


def plain_table(title: str, *columns: str, caption: str | None = None) -> Table:
    """Make a table whose first column is text and whose others are figures."""
    table = Table(
        title=title, title_justify="left", title_style="bold", caption=caption, caption_justify="left", box=None,
        pad_edge=False, header_style=QUIET, min_width=len(title),
    )  # fmt: skip
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table
