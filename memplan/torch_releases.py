"""Releases of torch and others, where they differ in what a training takes."""

from __future__ import annotations


def release_of(version: str) -> tuple[int, int]:
    """Return the release of a version such as ``2.13.0+cu130``, to compare with others."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
