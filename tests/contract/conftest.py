"""Fixtures of several suites: a process that traces are forked from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan.estimators import trace_template

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan.children import Template


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    """What has torch imported, which spares every trace the import."""
    with trace_template() as prepared:
        yield prepared
