"""Tests of one group run one after another, in one worker: some know by counters of the whole machine what happened."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("of one")
def test_the_group_of_a_test_is_known_where_tests_are_distributed_by_group(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("tests are not distributed by group")
    assert request.node.nodeid.endswith("@of one")
