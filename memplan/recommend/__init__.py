"""Which recipe to recommend, and what has to change with it; values in, values out."""

from __future__ import annotations
