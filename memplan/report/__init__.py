"""Estimated against measured: the facts of a run first, then its renderers."""

from __future__ import annotations
