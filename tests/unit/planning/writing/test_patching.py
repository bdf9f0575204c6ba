"""Obstacles to a patch, which show before any trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan.errors import PatchError
from memplan.planning.subject import subject_of_config
from memplan.planning.writing.patching import draft
from memplan.plans import PlanRequest
from memplan.recommend.scaling import LearningRateRule
from tests.making import config_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("batch_size = 4\nlr = float('1e-3')\n", "write a number there, or have the rate left as it is with --lr-rule"),
        ("batch_size = int('4')\nlr = 1e-3\n", "change this value by hand"),
        ("batch_size = 4\nlr = 1e-3 * batch_size**2\n", "write a number there, or have the rate left as it is"),
    ],
)
def test_a_rule_that_leaves_the_rate_is_named_where_that_helps(tmp_path: Path, text: str, hint: str) -> None:
    subject = subject_of_config(config_of(tmp_path, text, name="x.py", workload_target="a:b"))
    with pytest.raises(PatchError, match="cannot be edited in place: it is computed") as caught:
        draft(subject, PlanRequest())
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(hint)


def test_a_rate_that_stays_need_not_be_written(tmp_path: Path) -> None:
    config = config_of(tmp_path, "batch_size = 4\nlr = float('1e-3')\n", name="x.py", workload_target="a:b")
    draft(subject_of_config(config), PlanRequest(learning_rate_rule=LearningRateRule.NONE))
