"""What the checks of a workload's functions raise."""

from __future__ import annotations

import pickle

from memplan.training.workload_contract import TooFewSamplesError


def test_the_number_of_samples_travels_with_the_error() -> None:
    made = TooFewSamplesError("it has too few", available=30, hint="take fewer")
    arrived = pickle.loads(pickle.dumps(made))
    assert (str(arrived), arrived.available) == ("it has too few; take fewer", 30)
