"""Everything the journal stores equals itself after a trip through JSON."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import StoreError
from memplan.plans import Plan
from memplan.probe.records import from_json, to_json
from memplan.recipe import Precision, Recipe
from memplan.results import COMPONENTS, BreakdownBytes, Measurement, Outcome, OutcomeKind, Trial
from tests.making import trial

sizes = st.integers(0, 1 << 50)
# equality of nan with itself needs a look at the text
numbers = st.floats(allow_nan=False)

recipes = st.builds(
    Recipe,
    micro_batch_size=st.integers(1, 1 << 20),
    accumulation_steps=st.integers(1, 64),
    precision=st.sampled_from(Precision),
    learning_rate=st.none() | st.floats(1e-9, 10),
    activation_checkpointing=st.booleans(),
    world_size=st.integers(1, 8),
)
measurements = st.builds(
    Measurement,
    peak_allocated_bytes=sizes,
    peak_reserved_bytes=st.none() | sizes,
    peak_process_bytes=sizes,
    peak_device_bytes=sizes,
    breakdown=st.builds(BreakdownBytes, **dict.fromkeys(COMPONENTS, sizes)),
    step_times_s=st.lists(numbers, max_size=4).map(tuple),
    samples_per_s=numbers,
    losses=st.lists(numbers, max_size=6).map(tuple),
    alloc_retries=st.integers(0, 9),
    loss_scale=st.none() | numbers,
)
outcomes = st.builds(
    Outcome,
    kind=st.sampled_from(OutcomeKind),
    evidence=st.text(),
    duration_s=numbers,
    measurement=st.none() | measurements,
    log_tail=st.text(),
)
trials = st.builds(
    Trial,
    number=st.integers(1, 99),
    purpose=st.text(),
    recipe=recipes,
    device_name=st.text(),
    budget_bytes=sizes,
    outcome=outcomes,
    estimate=st.none(),
)


@given(trials)
def test_a_trial_survives(stored: Trial) -> None:
    assert from_json(Trial, to_json(stored)) == stored


def test_losses_that_are_no_numbers_survive() -> None:
    stored = trial(4, 700, losses=(1.0, math.inf, -math.inf, math.nan))
    text = to_json(stored)
    assert "[1.0,Infinity,-Infinity,NaN]" in text
    assert to_json(from_json(Trial, text)) == text


def test_text_that_is_not_valid_unicode_survives() -> None:
    stored = trial(4, None, evidence="file \udcff not found")
    assert from_json(Trial, to_json(stored)) == stored


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"number": "many"}'])
def test_text_that_holds_no_trial_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(StoreError, match="a stored Trial cannot be read") as caught:
        from_json(Trial, text)
    assert "\n" not in str(caught.value)


def test_a_trial_is_not_taken_for_a_plan() -> None:
    with pytest.raises(StoreError, match="a stored Plan cannot be read"):
        from_json(Plan, to_json(trial(4, 700)))
