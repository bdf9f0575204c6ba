"""Releases compare as numbers."""

from __future__ import annotations

import pytest

from memplan.torch_releases import release_of


@pytest.mark.parametrize("version", ["2.15.0", "2.15.0+cu132", "2.15.1a0+gitabc"])
def test_a_release_is_its_major_and_minor_number(version: str) -> None:
    assert release_of(version) == (2, 15) > release_of("2.9.1")
