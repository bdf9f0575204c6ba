"""Batch size and learning rate are found where modules keep them, and set there."""

from __future__ import annotations

import functools
from types import SimpleNamespace

from memplan.integrations.attributes import places_of


def test_an_attribute_and_the_hyper_parameter_of_the_same_value_are_both_set() -> None:
    module = SimpleNamespace(lr=0.1, hparams={"lr": 0.1})
    for place in places_of([module], ("lr", "hparams.lr")):
        place.write(0.2)
    assert (module.lr, module.hparams["lr"]) == (0.2, 0.2)


def test_a_number_that_says_something_else_is_left_alone() -> None:
    module = SimpleNamespace(lr=0.1, learning_rate=3.0)
    for place in places_of([module], ("lr", "learning_rate")):
        place.write(0.2)
    assert module.learning_rate == 3.0


def test_the_keywords_of_a_partial_can_be_set() -> None:
    module = SimpleNamespace(hparams={"optimizer": functools.partial(dict, lr=0.1)})
    (place,) = places_of([module], ("lr", "hparams.optimizer.keywords.lr"))
    place.write(0.4)
    assert module.hparams["optimizer"]() == {"lr": 0.4}


def test_what_is_no_number_is_no_place() -> None:
    assert places_of([None, SimpleNamespace(lr="auto", other=True)], ("lr", "other", "missing.lr")) == []
