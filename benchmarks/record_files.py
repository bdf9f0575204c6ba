"""The files that ``truth.py`` appends records to, one line of JSON each, gzipped or not."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def values_in(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield what all files of a kind in a folder hold; a last line that was cut off does not count."""
    for path in sorted(folder.glob(f"{kind}*.jsonl*")):
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        yield from map(json.loads, text.rpartition("\n")[0].splitlines())
