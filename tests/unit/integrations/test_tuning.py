"""What every framework's ``tune`` asks for."""

from __future__ import annotations

from typing import Any

import pytest

from memplan.integrations import tuning
from memplan.integrations.tuning import number_of_samples, planned
from tests.making import WORKLOAD


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options that a plan is asked for with."""
    options: dict[str, Any] = {}
    monkeypatch.setattr(tuning.api, "plan", lambda _workload, **given: options.update(given))
    return options


@pytest.mark.parametrize(
    ("samples", "options", "most"),
    [
        (30, {}, 30),
        (30, {"world_size": 4}, 7),
        (30, {"max_batch": 16}, 16),
        (2, {"world_size": 4}, 1),
        (5000, {}, None),
        (None, {}, None),
    ],
)
def test_no_batch_is_larger_than_the_training_set(
    asked: dict[str, Any], samples: int | None, options: Any, most: int | None
) -> None:
    values = {"per_device_train_batch_size": 8, "learning_rate": 1e-3}
    planned(WORKLOAD, values, format_name="huggingface", options={"device": "cpu", **options}, samples=samples)
    assert asked.get("max_batch") == most


def test_only_datasets_with_a_length_say_how_many_samples_they_have() -> None:
    assert number_of_samples([1, 2, 3]) == 3
    assert number_of_samples(iter([1, 2, 3])) is None
    assert number_of_samples(None) is None
