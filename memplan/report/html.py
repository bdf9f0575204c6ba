"""Reports as one self-contained HTML page: what the terminal shows, at a fixed width."""

from __future__ import annotations

import html
import io
from typing import TYPE_CHECKING

from rich.console import Console

from memplan.report.console import run_view

if TYPE_CHECKING:
    from memplan.report.facts import RunReport

_WIDTH = 120
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="UTF-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
{{stylesheet}}
body {{{{ color: {{foreground}}; background-color: {{background}}; }}}}
pre {{{{ font-family: Menlo, 'DejaVu Sans Mono', Consolas, 'Courier New', monospace; }}}}
</style>
</head>
<body>
<pre>{{code}}</pre>
</body>
</html>
"""


def run_to_html(report: RunReport) -> str:
    """Write a run's report as an HTML page without scripts or outside references."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(run_view(report))
    title = html.escape(f"memplan: run {report.run_id}").replace("{", "{{").replace("}", "}}")
    return console.export_html(inline_styles=True, code_format=_PAGE.format(title=title))
