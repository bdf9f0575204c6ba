"""Config ecosystems: read a user's knobs, locate their values, write a patch."""

from __future__ import annotations
