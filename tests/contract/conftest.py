"""Ends the process that traces are forked from."""

from __future__ import annotations

import pytest

from tests.contract.tracing import TEMPLATE, TEMPLATE_OF_COMPILED, TEMPLATE_OF_DEEPSPEED


@pytest.fixture(scope="session", autouse=True)
def _the_template_ends_with_the_tests():
    with TEMPLATE, TEMPLATE_OF_COMPILED, TEMPLATE_OF_DEEPSPEED:
        yield
