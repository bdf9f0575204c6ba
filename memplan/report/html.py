"""Reports as one self-contained HTML page: what the terminal shows, at a fixed width."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from memplan.report.console import run_view

if TYPE_CHECKING:
    from memplan.report.facts import RunReport

_WIDTH = 120


def run_to_html(report: RunReport) -> str:
    """Write a run's report as an HTML page without scripts or outside references."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(run_view(report))
    return console.export_html(inline_styles=True)
