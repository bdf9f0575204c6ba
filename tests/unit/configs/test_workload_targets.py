"""What a user writes for a workload, and what is meant."""

from __future__ import annotations

import pytest

from memplan.configs.workload_targets import target_of
from memplan.errors import WorkloadError


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("nets.planned:make", "nets.planned:make"),
        ("train-net:make", "train-net:make"),  # which no statement imports, but memplan does
        ("planned.py:make", "planned:make"),
        ("./nets/planned.py:make", "nets.planned:make"),
    ],
)
def test_a_function_is_named_by_its_module_or_that_ones_file(text: str, target: str) -> None:
    assert target_of(text, where="c.yaml") == target


@pytest.mark.parametrize(
    "text", ["nets.planned", ":make", ".py:make", "nets:", "nets/planned:make", "/home/nets.py:make", "../nets.py:make"]
)
def test_what_names_no_function_that_can_be_looked_for_is_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match=r'^c.yaml: workload .* does not name a function; write it as "package'):
        target_of(text, where="c.yaml")
